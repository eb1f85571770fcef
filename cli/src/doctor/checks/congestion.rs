//! The congestion control of connections over TCP.

use invar_linux::tcp::Congestion;

use crate::doctor::host::Host;
use crate::doctor::mend::sysctl;
use crate::doctor::report::{Finding, Report, Severity};

const ALLOWED: &str = "net.ipv4.tcp_allowed_congestion_control";

pub(super) fn check(host: &Host, report: &mut Report) {
    let asked = host.params().socket_congestion;
    if let Some(name) = asked.filter(|name| host.system.takes_congestion(name)) {
        return report.well(format!("INVAR_SOCKET_CONGESTION={name} is allowed"));
    }
    let list = |name: &str| {
        let text = host.proc.known(&format!("sys/net/ipv4/{name}"))?;
        Some(text.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    };
    let (Some(allowed), Some(available)) =
        (list("tcp_allowed_congestion_control"), list("tcp_available_congestion_control"))
    else {
        return report.unseen("/proc/sys/net/ipv4 does not show the kernel's congestion controls");
    };
    let has = |list: &[String], name: &str| list.iter().any(|known| known == name);
    if let Some(name) = asked {
        let find = |id, what: String, mend: String| Finding {
            severity: Severity::Bad,
            id,
            subject: "INVAR_SOCKET_CONGESTION".to_owned(),
            what,
            costs: "every connection over TCP fails".to_owned(),
            mend,
        };
        if !has(&available, name) {
            let what = format!("the kernel has no {name}; it has {}", available.join(" "));
            return report.find(find("congestion-unknown", what, format!("modprobe tcp_{name}")));
        }
        let what = format!("only root may use {name}; all may use {}", allowed.join(" "));
        let mend = sysctl(&format!("{ALLOWED}='{} {name}'", allowed.join(" ")));
        return report.find(find("congestion-refused", what, mend));
    }
    let own = Congestion::WITHIN_A_HOST;
    if has(&allowed, own) {
        return report.well(format!("{own} is allowed, which Invar uses within a host"));
    }
    report.find(Finding {
        severity: Severity::Note,
        id: "congestion-no-reno",
        subject: ALLOWED.to_owned(),
        what: format!("it lacks {own}, which Invar uses within a host"),
        costs:
            "connections within the host use the system's default, and a control that paces has \
                half the throughput there"
                .to_owned(),
        mend: sysctl(&format!("{ALLOWED}='{} {own}'", allowed.join(" "))),
    });
}
