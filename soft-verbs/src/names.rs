//! Names of codes, and conversions of rates.

use std::ffi::{CStr, c_char, c_int};

versions! {
    "IBVERBS_1.0":
        ibv_rate_to_mult mult_to_ibv_rate;
    "IBVERBS_1.1":
        ibv_event_type_str ibv_node_type_str ibv_port_state_str ibv_rate_to_mbps ibv_wc_status_str
        mbps_to_ibv_rate;
}

fn name(names: &[&'static CStr], code: c_int, unknown: &'static CStr) -> *const c_char {
    let name = usize::try_from(code).ok().and_then(|code| names.get(code));
    name.copied().unwrap_or(unknown).as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn ibv_wc_status_str(status: c_int) -> *const c_char {
    let names = [
        c"success",
        c"local length error",
        c"local QP operation error",
        c"local EE context operation error",
        c"local protection error",
        c"Work Request Flushed Error",
        c"memory management operation error",
        c"bad response error",
        c"local access error",
        c"remote invalid request error",
        c"remote access error",
        c"remote operation error",
        c"transport retry counter exceeded",
        c"RNR retry counter exceeded",
        c"local RDD violation error",
        c"remote invalid RD request",
        c"aborted error",
        c"invalid EE context number",
        c"invalid EE context state",
        c"fatal error",
        c"response timeout error",
        c"general error",
        c"TM error",
        c"TM software rendezvous",
    ];
    name(&names, status, c"unknown")
}

#[unsafe(no_mangle)]
extern "C" fn ibv_event_type_str(event: c_int) -> *const c_char {
    let names = [
        c"CQ error",
        c"local work queue catastrophic error",
        c"invalid request local work queue error",
        c"local access violation work queue error",
        c"communication established",
        c"send queue drained",
        c"path migrated",
        c"path migration request error",
        c"local catastrophic error",
        c"port active",
        c"port error",
        c"LID change",
        c"P_Key change",
        c"SM change",
        c"SRQ catastrophic error",
        c"SRQ limit reached",
        c"last WQE reached",
        c"client reregistration",
        c"GID table change",
        c"WQ fatal",
    ];
    name(&names, event, c"unknown")
}

#[unsafe(no_mangle)]
extern "C" fn ibv_node_type_str(node: c_int) -> *const c_char {
    let names = [
        c"unknown",
        c"InfiniBand channel adapter",
        c"InfiniBand switch",
        c"InfiniBand router",
        c"iWARP NIC",
        c"usNIC",
        c"usNIC UDP",
        c"unspecified",
    ];
    name(&names, node, c"unknown")
}

#[unsafe(no_mangle)]
extern "C" fn ibv_port_state_str(state: c_int) -> *const c_char {
    let names =
        [c"no state change (NOP)", c"down", c"init", c"armed", c"active", c"active deferred"];
    name(&names, state, c"invalid state")
}

/// Codes of rates, with their multiple of 2.5 Gbit/s (0 for rates that are no multiple) and their
/// Mbit/s.
const RATES: [(c_int, c_int, c_int); 23] = [
    (2, 1, 2500),
    (5, 2, 5000),
    (3, 4, 10_000),
    (6, 8, 20_000),
    (4, 12, 30_000),
    (7, 16, 40_000),
    (8, 24, 60_000),
    (9, 32, 80_000),
    (10, 48, 120_000),
    (11, 0, 14_062),
    (12, 0, 56_250),
    (13, 0, 112_500),
    (14, 0, 168_750),
    (15, 0, 25_781),
    (16, 0, 103_125),
    (17, 0, 206_250),
    (18, 0, 309_375),
    (19, 11, 28_125),
    (20, 20, 53_125),
    (21, 160, 425_000),
    (22, 240, 637_500),
    (23, 320, 850_000),
    (24, 480, 1_275_000),
];

#[unsafe(no_mangle)]
extern "C" fn ibv_rate_to_mult(rate: c_int) -> c_int {
    RATES.iter().find(|row| row.0 == rate && row.1 != 0).map_or(-1, |row| row.1)
}

#[unsafe(no_mangle)]
extern "C" fn mult_to_ibv_rate(mult: c_int) -> c_int {
    RATES.iter().find(|row| mult != 0 && row.1 == mult).map_or(0, |row| row.0)
}

#[unsafe(no_mangle)]
extern "C" fn ibv_rate_to_mbps(rate: c_int) -> c_int {
    RATES.iter().find(|row| row.0 == rate).map_or(-1, |row| row.2)
}

#[unsafe(no_mangle)]
extern "C" fn mbps_to_ibv_rate(mbps: c_int) -> c_int {
    RATES.iter().find(|row| row.2 == mbps).map_or(0, |row| row.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_convert_both_ways() {
        for (rate, mult, mbps) in RATES {
            assert_eq!(mbps_to_ibv_rate(ibv_rate_to_mbps(rate)), rate);
            assert_eq!(ibv_rate_to_mbps(rate), mbps);
            if mult != 0 {
                assert_eq!(mult_to_ibv_rate(ibv_rate_to_mult(rate)), rate);
            }
        }
        assert_eq!([ibv_rate_to_mult(0), ibv_rate_to_mbps(99), mult_to_ibv_rate(3)], [-1, -1, 0]);
    }

    #[test]
    fn codes_out_of_range_have_a_name_too() {
        for code in [-1, 24, c_int::MAX, c_int::MIN] {
            // SAFETY: the functions return static texts.
            let text = unsafe { CStr::from_ptr(ibv_wc_status_str(code)) };
            assert_eq!(text, c"unknown");
        }
    }
}
