//! The kernel's limits for sockets.

use invar_core::param::TransportChoice;
use invar_linux::udp;

use crate::doctor::host::{Blind, Host};
use crate::doctor::mend::sysctl;
use crate::doctor::rdma::RdmaDevice;
use crate::doctor::report::{Finding, Report, Severity};

/// The largest buffer that TCP should be able to grow to: 10 Gb/s times 5 ms.
const TCP_BYTES: u64 = 6 << 20;

struct Limit {
    /// The file below `/proc/sys`.
    file: &'static str,
    id: &'static str,
    /// The least that suffices.
    least: u64,
    costs: &'static str,
}

const LIMITS: [Limit; 5] = [
    Limit {
        file: "net/core/rmem_max",
        id: "rmem-small",
        least: udp::BUFFER_BYTES as u64,
        costs: "the software NIC loses packets whenever its receiver is not scheduled for a moment, \
                unless it runs as root",
    },
    Limit {
        file: "net/core/wmem_max",
        id: "wmem-small",
        least: udp::BUFFER_BYTES as u64,
        costs: "the software NIC sends in shorter bursts, unless it runs as root",
    },
    Limit {
        file: "net/ipv4/tcp_rmem",
        id: "tcp-rmem-small",
        least: TCP_BYTES,
        costs: "a TCP connection over a long or fast path does not reach its speed",
    },
    Limit {
        file: "net/ipv4/tcp_wmem",
        id: "tcp-wmem-small",
        // The kernel's own default, which suffices for most networks.
        least: 4 << 20,
        costs: "a TCP connection over a long or fast path does not reach its speed",
    },
    Limit {
        file: "net/core/somaxconn",
        id: "somaxconn-small",
        least: 1024,
        costs: "if many ranks call a listener at once, some calls wait for seconds",
    },
];

pub(super) fn check(host: &Host, report: &mut Report) {
    for limit in &LIMITS {
        check_limit(host, limit, report);
    }
}

fn check_limit(host: &Host, limit: &Limit, report: &mut Report) {
    let Limit { file, id, least, costs } = limit;
    let name = file.replace('/', ".");
    let path = format!("sys/{file}");
    let text = match host.proc.text(&path) {
        Ok(text) => text,
        Err(Blind::Absent) => {
            return report
                .unseen(format!("{name}: the kernel shows it on the host only, not here"));
        }
        Err(Blind::Refused(error)) => return report.unseen(format!("{name}: {error}")),
    };
    // Three numbers are the least, the first and the largest length.
    let Some(now) = text.split_whitespace().last().and_then(|word| word.parse::<u64>().ok()) else {
        return report.unseen(format!("{name}: '{text}' is no number"));
    };
    if now >= *least {
        return report.well(format!("{name} is {now}"));
    }
    if file.ends_with("mem_max") && host.system.forces_buffers() {
        return report.well(format!("{name} is {now}, which does not bind this process"));
    }
    let words: Vec<&str> = text.split_whitespace().collect();
    let value = match words.as_slice() {
        [min, first, _] => format!("'{min} {first} {least}'"),
        _ => least.to_string(),
    };
    report.find(Finding {
        severity: if is_needed(host, file) { Severity::Warn } else { Severity::Note },
        id,
        subject: name.clone(),
        what: format!("{now}, less than {least}"),
        costs: (*costs).to_owned(),
        mend: sysctl(&format!("{name}={value}")),
    });
}

/// Whether the transport that Invar chooses here depends on the limit.
fn is_needed(host: &Host, file: &str) -> bool {
    let is_udp = file.ends_with("mem_max");
    match host.params().transport {
        TransportChoice::Soft => is_udp,
        TransportChoice::Socket => !is_udp,
        TransportChoice::Ib | TransportChoice::Custom => file.ends_with("somaxconn"),
        TransportChoice::Auto => {
            !is_udp && (file.ends_with("somaxconn") || RdmaDevice::names_used(host).is_empty())
        }
    }
}
