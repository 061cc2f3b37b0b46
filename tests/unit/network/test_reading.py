"""Single values: what a library makes of them, however they were meant."""

import ctypes

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trainyard.network.reading import Reading, bad_elements, integer, level, misread, truth
from trainyard.network.variables import ALGORITHMS, PROTOCOLS, VARIABLES


@pytest.mark.parametrize(
    ("text", "value", "rest"),
    [
        ("106", 106, ""),
        ("0x6a", 106, ""),
        ("010", 8, ""),
        ("-1", -1, ""),
        (" 7", 7, ""),
        ("8M", 8, "M"),
        ("true", 0, "true"),
        ("08", 0, "8"),
        ("0x", 0, "x"),
        ("", None, ""),
        (str(2**63), None, str(2**63)),
    ],
)
def test_numbers(text, value, rest):
    assert integer(text) == Reading(value, rest)


libc = ctypes.CDLL(None)
libc.strtoll.restype = ctypes.c_longlong
libc.strtoll.argtypes = [ctypes.c_char_p, ctypes.POINTER(ctypes.c_void_p), ctypes.c_int]


@given(st.text(" +-0123456789xXabfM", min_size=1, max_size=12))
def test_a_number_is_what_the_c_library_makes_of_it(text):
    buffer = ctypes.create_string_buffer(text.encode())
    end = ctypes.c_void_p()
    value = libc.strtoll(buffer, ctypes.byref(end), 0)
    assert integer(text) == Reading(value, text[end.value - ctypes.addressof(buffer) :])


@pytest.mark.parametrize(("text", "value"), [("1", 1), ("t", 1), ("True", 1), ("0", 0), ("FALSE", 0), ("yes", None)])
def test_truths(text, value):
    assert truth(text).value == value


@pytest.mark.parametrize(
    ("text", "value"), [("PIX", "PIX"), ("pix", None), ("SYS", "SYS"), ("0", "LOC"), ("2", "PXB"), ("9", "SYS")]
)
def test_levels(text, value):
    assert level(text).value == value


@pytest.mark.parametrize(
    ("text", "elements", "bad"),
    [
        ("ring,collnetdirect;allreduce:tree,collnetdirect;broadcast:ring", ALGORITHMS, None),
        ("COLLNETCHAIN", ALGORITHMS, None),
        ("^LL128;allreduce:LL128", PROTOCOLS, None),
        ("Simple,LL128", PROTOCOLS, None),
        ("Tree, Ring", ALGORITHMS, " Ring"),
        ("ring;tree", ALGORITHMS, "tree"),
        ("alltoall:ring", ALGORITHMS, "alltoall"),
        ("LL256", PROTOCOLS, "LL256"),
        ("", ALGORITHMS, None),
    ],
)
def test_algorithms_and_protocols(text, elements, bad):
    assert bad_elements(text, elements) == bad


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("NCCL_IB_DISABLE", "true", "read as 0"),
        ("NCCL_BUFFSIZE", "8M", "read as 8"),
        ("NCCL_IB_TC", "0106", "octal"),
        ("NCCL_IB_TIMEOUT", str(2**70), "default stays"),
        ("NCCL_NET_GDR_LEVEL", "pix", "capitals"),
        ("NCCL_SOCKET_FAMILY", "ipv6", "AF_INET6"),
        ("NCCL_DEBUG", "verbose", "WARN"),
        ("NCCL_ALGO", "tree,wing", "'wing'"),
        ("NCCL_SET_THREAD_NAME", "yes", "TRUE"),
    ],
)
def test_a_value_that_is_read_otherwise_than_it_was_meant_is_pointed_out(name, value, says):
    assert says in misread(VARIABLES[name], value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NCCL_IB_DISABLE", "1"),
        ("NCCL_IB_TC", "106"),
        ("NCCL_DEBUG", "warn"),
        ("NCCL_NET_GDR_LEVEL", "2"),
        ("NCCL_ALGO", "Ring"),
        ("NCCL_IB_ADDR_FAMILY", "AF_INET6"),
        ("NCCL_IB_HCA", "=mlx5_0"),
        ("NCCL_TOPO_FILE", "anything"),
        ("NCCL_IB_TC", ""),
    ],
)
def test_a_value_that_is_read_as_written_is_not(name, value):
    assert misread(VARIABLES[name], value) is None
