//! Counters of lost packets: those of the kernel's UDP and TCP, and those of RDMA ports.

use std::collections::BTreeMap;

use super::host::Host;

/// Counters of `/proc/net/snmp`, as `Protocol.Name`.
const OF_IP: [&str; 3] = ["Tcp.RetransSegs", "Udp.RcvbufErrors", "Udp.SndbufErrors"];
/// Counters of `/proc/net/snmp6`.
const OF_IPV6: [&str; 2] = ["Udp6RcvbufErrors", "Udp6SndbufErrors"];
/// Counters of an RDMA port, by the folder: those that all ports have, and those of mlx5, rdma_rxe and bnxt_re.
const OF_PORTS: [(&str, &[&str]); 2] = [
    ("counters", &["symbol_error", "port_rcv_errors", "port_xmit_discards"]),
    (
        "hw_counters",
        &[
            "local_ack_timeout_err",
            "packet_seq_err",
            "out_of_sequence",
            "implied_nak_seq_err",
            "completer_retry_err",
            "rcvd_seq_err",
            "to_retransmits",
            "seq_err_naks_rcvd",
            "missing_resp",
            "oos_drop_count",
            "rx_roce_errors",
            "rx_roce_discards",
            "tx_roce_discards",
        ],
    ),
];

/// The counters of a moment.
pub(super) struct Losses(BTreeMap<String, u64>);

impl Losses {
    /// Reads the counters that the kernel shows to this process.
    pub(super) fn read(host: &Host) -> Self {
        let mut counters = BTreeMap::new();
        let text = |file| host.proc.known(file).unwrap_or_default();
        let all = pairs_of_lines(&text("net/snmp"));
        let all = all.into_iter().filter(|(name, _)| OF_IP.contains(&name.as_str()));
        counters.extend(all);
        for line in text("net/snmp6").lines() {
            if let Some((name, value)) = line.split_once(char::is_whitespace)
                && let (true, Ok(value)) = (OF_IPV6.contains(&name), value.trim().parse())
            {
                counters.insert(name.to_owned(), value);
            }
        }
        for device in host.rdma_devices() {
            for port in host.sys.names(&format!("class/infiniband/{device}/ports")) {
                for (folder, names) in OF_PORTS {
                    for name in names {
                        let path =
                            format!("class/infiniband/{device}/ports/{port}/{folder}/{name}");
                        let value = host.sys.known(&path).and_then(|value| value.parse().ok());
                        counters.extend(
                            value.map(|value| (format!("{device} port {port} {name}"), value)),
                        );
                    }
                }
            }
        }
        Losses(counters)
    }

    /// The counters that grew since `before`, and by how much.
    pub(super) fn since(&self, before: &Losses) -> Vec<(String, u64)> {
        let growth = |(name, now): (&String, &u64)| {
            let grown = now.checked_sub(*before.0.get(name)?)?;
            (grown > 0).then(|| (name.clone(), grown))
        };
        self.0.iter().filter_map(growth).collect()
    }
}

/// The counters of `/proc/net/snmp`, where a line of values follows each line of names.
fn pairs_of_lines(text: &str) -> Vec<(String, u64)> {
    let lines: Vec<&str> = text.lines().collect();
    let mut counters = Vec::new();
    for pair in lines.chunks_exact(2) {
        let (mut names, mut values) = (pair[0].split_whitespace(), pair[1].split_whitespace());
        let Some(protocol) = names.next().filter(|name| values.next() == Some(name)) else {
            continue;
        };
        let protocol = protocol.trim_end_matches(':');
        for (name, value) in names.zip(values) {
            // Some values, as the most connections, may be -1.
            counters.extend(value.parse().ok().map(|value| (format!("{protocol}.{name}"), value)));
        }
    }
    counters
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::stand_in::StandIn;

    fn snmp(retransmitted: u64, dropped: u64) -> String {
        format!(
            "Tcp: RtoMin MaxConn RetransSegs\nTcp: 200 -1 {retransmitted}\n\
             Udp: InDatagrams RcvbufErrors\nUdp: 7 {dropped}"
        )
    }

    #[test]
    fn counters_that_grew_are_told_and_others_are_not() {
        let host = StandIn::rdma();
        let ack = "hw_counters/local_ack_timeout_err";
        host.port(0, ack, "3");
        host.port(1, ack, "3");
        host.port(1, "hw_counters/to_retransmits", "0");
        host.tree.file("proc/net/snmp", &snmp(5, 9));
        host.tree.file("proc/net/snmp6", "Udp6InDatagrams \t 1\nUdp6RcvbufErrors \t 1");
        let before = Losses::read(&host.host());
        assert_eq!(Losses::read(&host.host()).since(&before), []);
        host.port(1, ack, "10");
        host.port(1, "hw_counters/to_retransmits", "4");
        host.tree.file("proc/net/snmp", &snmp(6, 9));
        host.tree.file("proc/net/snmp6", "Udp6InDatagrams \t 4\nUdp6RcvbufErrors \t 3");
        let grown = [
            ("Tcp.RetransSegs", 1),
            ("Udp6RcvbufErrors", 2),
            ("mlx5_1 port 1 local_ack_timeout_err", 7),
            ("mlx5_1 port 1 to_retransmits", 4),
        ];
        let grown = grown.map(|(name, by)| (name.to_owned(), by));
        assert_eq!(Losses::read(&host.host()).since(&before), grown);
    }

    #[test]
    fn a_file_that_is_broken_has_no_counters() {
        for text in
            ["", "Tcp: RetransSegs", "Tcp: RetransSegs\nUdp: 1", "Tcp: RetransSegs\nTcp: x", "\n\n"]
        {
            assert_eq!(pairs_of_lines(text), [], "{text}");
        }
    }
}
