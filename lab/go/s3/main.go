// Command s3 serves the buckets (folders) of a folder by the S3 protocol, with the Versity gateway:
//
//	s3 127.0.0.1:7070 /var/lib/s3
//
// The one account is that of AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY. The folder's file system must keep extended attributes.
package main

import (
	"context"
	"log"
	"os"
	"os/signal"
	"syscall"

	"github.com/versity/versitygw/backend/meta"
	"github.com/versity/versitygw/backend/posix"
	"github.com/versity/versitygw/embedgw"
)

func main() {
	if len(os.Args) != 3 {
		log.Fatal("usage: s3 HOST:PORT FOLDER")
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	store, err := posix.New(os.Args[2], meta.XattrMeta{}, posix.PosixOpts{})
	if err != nil {
		log.Fatal(err)
	}
	err = embedgw.RunVersityGW(ctx, store, &embedgw.Config{
		RootUserAccess:    os.Getenv("AWS_ACCESS_KEY_ID"),
		RootUserSecret:    os.Getenv("AWS_SECRET_ACCESS_KEY"),
		Ports:             []string{os.Args[1]},
		MaxConnections:    1024,
		MaxRequests:       1024,
		MultipartMaxParts: 10000,
		Quiet:             true,
		KeepAlive:         true,
	})
	if err != nil && ctx.Err() == nil {
		log.Fatal(err)
	}
}
