extern crate std;

use std::format;
use std::string::{String, ToString};

use proptest::prelude::*;

use super::value::parse_integer;
use super::*;

/// The parameters where just `name` is set.
fn with<'a>(name: &'static str, value: &'a str) -> Result<Params<'a>, ParamError<'a>> {
    Params::from_lookup(|asked| (asked == name).then_some(value))
}

#[test]
fn defaults_are_those_of_nccl_but_for_the_documented_ones() {
    let params = Params::default();
    assert_eq!((params.ib_gid_index, params.ib_timeout, params.ib_retry_cnt), (None, 20, 7));
    assert_eq!((params.ib_ar_threshold, params.ib_qps_per_connection), (8192, 1));
    assert_eq!((params.ib_pci_relaxed_ordering, params.ib_adaptive_routing), (2, None));
    assert_eq!((params.ib_disable, params.gdr_flush_disable), (false, false));
    assert_eq!((params.socket_nthreads, params.proxy_append_batch), (None, 16));
    assert_eq!((params.wire, params.fifo_depth), (Wire::Invar, 256));
    for info in TABLE {
        let moved = ["NCCL_IB_GID_INDEX", "NCCL_IB_TIMEOUT"].contains(&info.name);
        let newer = info.differs.starts_with("Not in 2.14.3");
        assert_eq!(moved || newer, !info.differs.is_empty(), "{}", info.name);
    }
}

#[test]
fn every_row_says_what_it_means_and_names_are_unique() {
    for (i, info) in TABLE.iter().enumerate() {
        assert!(info.meaning.ends_with('.') && !info.meaning.starts_with(' '), "{info:?}");
        assert!(!info.meaning.contains("  "), "{info:?}");
        assert!(TABLE[..i].iter().all(|other| other.name != info.name), "{}", info.name);
    }
}

#[test]
fn empty_and_padded_values_are_as_in_nccl() {
    assert_eq!(with("NCCL_IB_TIMEOUT", "").unwrap().ib_timeout, 20);
    assert_eq!(with("NCCL_IB_TIMEOUT", " 22 ").unwrap().ib_timeout, 22);
    assert_eq!(with("NCCL_IB_TC", "0x6A").unwrap().ib_tc, Some(106));
    assert_eq!(with("NCCL_IB_TC", "0152").unwrap().ib_tc, Some(106));
}

#[test]
fn every_kind_of_value_is_read() {
    assert_eq!(with("NCCL_IB_GID_INDEX", "3").unwrap().ib_gid_index, Some(3));
    assert_eq!(with("NCCL_IB_GID_INDEX", "-0x1").unwrap().ib_gid_index, None);
    assert_eq!(with("NCCL_IB_ADAPTIVE_ROUTING", "1").unwrap().ib_adaptive_routing, Some(true));
    assert_eq!(with("INVAR_WIRE", "nccl-2.14").unwrap().wire, Wire::Nccl214);
    for (level, recorder) in
        [("0", FlightRecorder::Off), ("", FlightRecorder::Events), ("2", FlightRecorder::Messages)]
    {
        assert_eq!(with("INVAR_RECORDER", level).unwrap().recorder, recorder);
    }
    assert_eq!(with("NCCL_SOCKET_FAMILY", "AF_INET6").unwrap().socket_family, AddressFamily::Inet6);
    for (level, distance) in
        [("PHB", PciDistance::Phb), ("3", PciDistance::Phb), ("PXN", PciDistance::Pxb)]
    {
        assert_eq!(with("NCCL_NET_GDR_LEVEL", level).unwrap().net_gdr_level, distance);
    }
    let subsystems = with("NCCL_DEBUG_SUBSYS", "INIT, NET").unwrap().nccl_debug_subsys;
    assert_eq!(subsystems, Some("INIT, NET"));
    assert!(!with("NCCL_IB_HCA", "^mlx5_1").unwrap().ib_hca.matches("mlx5_1", Some(1)));
    let ports = with("INVAR_SOFT_PORT", " 4791 ").unwrap().soft_port;
    assert_eq!(ports.single(), Some(4791));
    let subnet = with("NCCL_IB_ADDR_RANGE", "10.1.2.3/8").unwrap().ib_addr_range.unwrap();
    assert!(subnet.contains("10.200.0.1".parse().unwrap()));
    assert_eq!(
        with("INVAR_SOCKET_CONGESTION", " cubic ").unwrap().socket_congestion,
        Some("cubic")
    );
    let threshold = with("NCCL_IB_AR_THRESHOLD", "9223372036854775807").unwrap().ib_ar_threshold;
    assert_eq!(threshold, i64::MAX as u64);
}

#[test]
fn what_is_not_allowed_is_an_error_that_names_the_variable() {
    for (name, value, message) in [
        ("NCCL_IB_TIMEOUT", "32", "NCCL_IB_TIMEOUT=32: must be a number from 0 to 31"),
        ("NCCL_IB_TIMEOUT", "-1", "NCCL_IB_TIMEOUT=-1: must be a number from 0 to 31"),
        ("NCCL_IB_TIMEOUT", "22s", "NCCL_IB_TIMEOUT=22s: must be a number from 0 to 31"),
        ("NCCL_IB_TIMEOUT", " ", "NCCL_IB_TIMEOUT= : must be a number from 0 to 31"),
        ("NCCL_IB_DISABLE", "yes", "NCCL_IB_DISABLE=yes: must be a number from 0 to 1"),
        ("INVAR_RECORDER", "3", "INVAR_RECORDER=3: must be a number from 0 to 2"),
        (
            "NCCL_IB_GID_INDEX",
            "-2",
            "NCCL_IB_GID_INDEX=-2: must be a number from 0 to 255, or -1 (automatic)",
        ),
        ("INVAR_FIFO_DEPTH", "48", "INVAR_FIFO_DEPTH=48: must be a power of two from 8 to 256"),
        ("INVAR_FIFO_DEPTH", "4", "INVAR_FIFO_DEPTH=4: must be a power of two from 8 to 256"),
        ("INVAR_FIFO_DEPTH", "512", "INVAR_FIFO_DEPTH=512: must be a power of two from 8 to 256"),
        (
            "INVAR_PORT_RANGE",
            "20100-20000",
            "INVAR_PORT_RANGE=20100-20000: must be a port, a range like 20000-20100, or 0 (any that \
             is free)",
        ),
        ("INVAR_WIRE", "nccl", "INVAR_WIRE=nccl: must be one of invar nccl-2.14"),
        (
            "INVAR_SOCKET_CONGESTION",
            "reno bbr",
            "INVAR_SOCKET_CONGESTION=reno bbr: must be a name without spaces",
        ),
        (
            "NCCL_IB_ADDR_RANGE",
            "10.0.0.0/33",
            "NCCL_IB_ADDR_RANGE=10.0.0.0/33: must be a subnet like 10.0.0.0/8 or fd00::/8",
        ),
    ] {
        assert_eq!(with(name, value).unwrap_err().to_string(), message);
    }
    assert_eq!(with("NCCL_IB_HCA", "mlx5_0:x").unwrap_err().name, "NCCL_IB_HCA");
}

#[test]
fn integers_are_read_as_strtoll_does_but_to_the_end() {
    for (text, number) in [
        ("0", Some(0)),
        ("-0", Some(0)),
        ("+7", Some(7)),
        ("017", Some(15)),
        ("-0x10", Some(-16)),
        ("0XfF", Some(255)),
        ("-9223372036854775808", Some(i64::MIN)),
        ("9223372036854775808", None),
        ("99999999999999999999999999999999999999999999", None),
        ("", None),
        ("-", None),
        ("0x", None),
        ("08", None),
        ("--1", None),
        ("0x-1", None),
        ("0+1", None),
        ("1 2", None),
        ("1_000", None),
        ("١", None),
    ] {
        assert_eq!(parse_integer(text), number, "{text:?}");
    }
}

#[test]
fn subnets_hold_the_addresses_that_share_the_prefix() {
    for (subnet, addr, inside) in [
        ("10.0.0.0/8", "11.0.0.0", false),
        ("0.0.0.0/0", "255.255.255.255", true),
        ("0.0.0.0/0", "::1", false),
        ("192.168.1.1/32", "192.168.1.1", true),
        ("192.168.1.1/32", "192.168.1.0", false),
        ("192.168.1.1/31", "192.168.1.0", true),
        ("fd00::/8", "fdff::1", true),
        ("fd00::/8", "fe80::1", false),
        ("fe80::1/128", "fe80::1", true),
    ] {
        let holds = Subnet::parse(subnet).unwrap().contains(addr.parse().unwrap());
        assert_eq!(holds, inside, "{addr} in {subnet}");
    }
    for text in ["10.0.0.0", "10.0.0.0/", "10.0/8", "/8", "::/129", "10.0.0.0/-1"] {
        assert_eq!(Subnet::parse(text), None, "{text}");
    }
}

proptest! {
    #[test]
    fn any_number_is_read_in_every_notation(number: i64) {
        let sign = if number < 0 { "-" } else { "" };
        let magnitude = number.unsigned_abs();
        let texts: [String; 3] = [
            number.to_string(),
            format!("{sign}0x{magnitude:X}"),
            format!("{sign}0{magnitude:o}"),
        ];
        for text in texts {
            prop_assert_eq!(parse_integer(&text), Some(number));
        }
    }

    #[test]
    fn any_text_is_read_or_refused(row in 0..TABLE.len(), text in ".{0,12}") {
        let _ = with(TABLE[row].name, &text);
    }
}
