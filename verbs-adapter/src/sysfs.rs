//! Facts about RDMA devices that only sysfs knows. A container may not be able to read sysfs, so all
//! results are optional.

use std::fs;
use std::path::Path;

use invar_core::nic::NicCounters;

const CLASS: &str = "/sys/class/infiniband";

/// Returns the path of a device's PCI device in the tree `sysfs`; a software device has none.
pub(crate) fn pci_path(sysfs: &Path, device: &str) -> Option<String> {
    let link = sysfs.join("class/infiniband").join(device).join("device");
    fs::canonicalize(link).ok()?.into_os_string().into_string().ok()
}

/// Whether a device speaks iWARP, in the tree `sysfs`. The kernel writes such a type as `4: RNIC`.
pub(crate) fn is_iwarp(sysfs: &Path, device: &str) -> bool {
    let file = sysfs.join("class/infiniband").join(device).join("node_type");
    fs::read_to_string(file).is_ok_and(|text| text.trim_end().ends_with("RNIC"))
}

/// Returns the counters of a port of a device since its driver was loaded, in the tree `sysfs`. Counters that the
/// driver lacks are 0.
pub(crate) fn counters(sysfs: &Path, device: &str, port_num: u8) -> NicCounters {
    let port = sysfs.join(format!("class/infiniband/{device}/ports/{port_num}"));
    let read = |name: &&str| -> Option<u64> {
        fs::read_to_string(port.join(name)).ok()?.trim_end().parse().ok()
    };
    let sum = |names: &[&str]| names.iter().filter_map(read).fold(0, u64::saturating_add);
    // A driver may count one thing by several names.
    let first = |names: &[&str]| names.iter().find_map(read).unwrap_or(0);
    // The IBTA's data counters count words of four bytes (IBTA §16.1.3.5). The others are those of mlx5, of
    // rdma_rxe, and of bnxt_re, whose older versions have none of the IBTA's.
    let bytes = |words: &str, bytes: &str| match read(&words) {
        Some(words) => words.saturating_mul(4),
        None => first(&[bytes]),
    };
    NicCounters {
        sent_bytes: bytes("counters/port_xmit_data", "hw_counters/tx_bytes"),
        received_bytes: bytes("counters/port_rcv_data", "hw_counters/rx_bytes"),
        sent_packets: first(&[
            "counters/port_xmit_packets",
            "hw_counters/sent_pkts",
            "hw_counters/tx_pkts",
        ]),
        received_packets: first(&[
            "counters/port_rcv_packets",
            "hw_counters/rcvd_pkts",
            "hw_counters/rx_pkts",
        ]),
        retransmitted_packets: sum(&[
            "hw_counters/packet_seq_err",
            "hw_counters/implied_nak_seq_err",
            "hw_counters/rcvd_seq_err",
            "hw_counters/seq_err_naks_rcvd",
            "hw_counters/missing_resp",
        ]),
        out_of_order_packets: sum(&[
            "hw_counters/out_of_sequence",
            "hw_counters/out_of_seq_request",
            "hw_counters/oos_drop_count",
        ]),
        rnr: sum(&[
            "hw_counters/out_of_buffer",
            "hw_counters/rnr_nak_retry_err",
            "hw_counters/send_rnr_err",
            "hw_counters/rcvd_rnr_err",
            "hw_counters/rx_out_of_buffer",
            "hw_counters/rnr_naks_rcvd",
        ]),
        ack_timeouts: sum(&[
            "hw_counters/local_ack_timeout_err",
            "hw_counters/completer_retry_err",
            "hw_counters/to_retransmits",
        ]),
        corrupt_packets: first(&["hw_counters/rx_roce_errors", "counters/port_rcv_errors"])
            .saturating_add(sum(&["hw_counters/rx_icrc_encapsulated"])),
        dropped_packets: first(&["hw_counters/tx_roce_discards", "counters/port_xmit_discards"])
            .saturating_add(sum(&["hw_counters/rx_roce_discards"])),
    }
}

/// Returns the RoCE version of an entry of the GID table.
pub(crate) fn gid_type(device: &str, port_num: u8, index: u8) -> Option<u8> {
    let path = format!("{CLASS}/{device}/ports/{port_num}/gid_attrs/types/{index}");
    match fs::read_to_string(path).ok()?.trim_end() {
        "IB/RoCE v1" => Some(1),
        "RoCE v2" => Some(2),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tree with these files of the port of a device.
    fn tree(device: &str, port_num: u8, files: &[(&str, &str)]) -> tempfile::TempDir {
        let sysfs = tempfile::tempdir().unwrap();
        let port = sysfs.path().join(format!("class/infiniband/{device}/ports/{port_num}"));
        for (file, text) in files {
            let path = port.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        sysfs
    }

    #[test]
    fn the_counters_of_a_port_are_those_of_its_files_and_0_without_files() {
        let files = [
            ("counters/port_xmit_data", "1000\n"),
            ("counters/port_rcv_errors", "3\n"),
            ("hw_counters/local_ack_timeout_err", "5\n"),
            ("hw_counters/out_of_sequence", "N/A\n"),
        ];
        let sysfs = tree("mlx5_0", 2, &files);
        let found = counters(sysfs.path(), "mlx5_0", 2);
        let none = counters(sysfs.path(), "mlx5_0", 1);
        let expected = NicCounters {
            sent_bytes: 4000,
            corrupt_packets: 3,
            ack_timeouts: 5,
            ..NicCounters::default()
        };
        assert_eq!((found, none), (expected, NicCounters::default()));
    }

    #[test]
    fn what_a_driver_counts_twice_counts_once() {
        let own = [
            ("hw_counters/tx_bytes", "4004\n"),
            ("hw_counters/tx_pkts", "7\n"),
            ("hw_counters/rx_roce_errors", "2\n"),
            ("hw_counters/to_retransmits", "5\n"),
        ];
        let of_all = [
            ("counters/port_xmit_data", "1001\n"),
            ("counters/port_xmit_packets", "7\n"),
            ("counters/port_rcv_errors", "2\n"),
        ];
        let expected = NicCounters {
            sent_bytes: 4004,
            sent_packets: 7,
            corrupt_packets: 2,
            ack_timeouts: 5,
            ..NicCounters::default()
        };
        // Newer versions of bnxt_re have both.
        for files in [own.to_vec(), [&own[..], &of_all].concat()] {
            let sysfs = tree("bnxt_re0", 1, &files);
            assert_eq!(counters(sysfs.path(), "bnxt_re0", 1), expected);
        }
    }
}
