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
    let read = |name: &&str| -> u64 {
        let text = fs::read_to_string(port.join(name)).unwrap_or_default();
        text.trim_end().parse().unwrap_or(0)
    };
    let sum = |names: &[&str]| names.iter().map(read).fold(0, u64::saturating_add);
    // The IBTA's data counters count words of four bytes (IBTA §16.1.3.5). The others are those of mlx5, and of
    // rdma_rxe.
    NicCounters {
        sent_bytes: sum(&["counters/port_xmit_data"]).saturating_mul(4),
        received_bytes: sum(&["counters/port_rcv_data"]).saturating_mul(4),
        sent_packets: sum(&["counters/port_xmit_packets", "hw_counters/sent_pkts"]),
        received_packets: sum(&["counters/port_rcv_packets", "hw_counters/rcvd_pkts"]),
        retransmitted_packets: sum(&[
            "hw_counters/packet_seq_err",
            "hw_counters/implied_nak_seq_err",
            "hw_counters/rcvd_seq_err",
        ]),
        out_of_order_packets: sum(&[
            "hw_counters/out_of_sequence",
            "hw_counters/out_of_seq_request",
        ]),
        rnr: sum(&[
            "hw_counters/out_of_buffer",
            "hw_counters/rnr_nak_retry_err",
            "hw_counters/send_rnr_err",
            "hw_counters/rcvd_rnr_err",
        ]),
        ack_timeouts: sum(&[
            "hw_counters/local_ack_timeout_err",
            "hw_counters/completer_retry_err",
        ]),
        corrupt_packets: sum(&["counters/port_rcv_errors", "hw_counters/rx_icrc_encapsulated"]),
        dropped_packets: sum(&["counters/port_xmit_discards"]),
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

    #[test]
    fn the_counters_of_a_port_are_those_of_its_files_and_0_without_files() {
        let sysfs = tempfile::tempdir().unwrap();
        let port = sysfs.path().join("class/infiniband/mlx5_0/ports/2");
        for (file, text) in [
            ("counters/port_xmit_data", "1000\n"),
            ("counters/port_rcv_errors", "3\n"),
            ("hw_counters/local_ack_timeout_err", "5\n"),
            ("hw_counters/out_of_sequence", "N/A\n"),
        ] {
            let path = port.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
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
}
