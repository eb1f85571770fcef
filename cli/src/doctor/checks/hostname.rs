//! The name of the host, and the address that it stands for.

use std::net::IpAddr;

use crate::doctor::host::{Host, Lookup};
use crate::doctor::report::{Finding, Report, Severity};

pub(super) fn check(host: &Host, report: &mut Report) {
    let name = host.system.hostname();
    // Linux names a host so before somebody names it.
    if name == "(none)" {
        return report.find(Finding {
            severity: Severity::Note,
            id: "hostname-none",
            subject: String::new(),
            what: "the host has no name".to_owned(),
            costs: "a program that looks for its own address by name fails".to_owned(),
            mend: "hostnamectl hostname NAME".to_owned(),
        });
    }
    let interfaces = host.interfaces();
    let outside = interfaces.iter().filter(|interface| interface.up && !interface.loopback);
    let address =
        outside.flat_map(|interface| &interface.addresses).find(|addr| addr.scope_id == 0);
    let line = match address {
        Some(address) => format!("{} {name}", address.ip),
        None => format!("ADDRESS {name}"),
    };
    let find = |severity, id, what: String, costs: &str| Finding {
        severity,
        id,
        subject: name.clone(),
        what,
        costs: costs.to_owned(),
        mend: format!("$EDITOR /etc/hosts   # the only line with this name: {line}"),
    };
    match host.system.resolve(&name) {
        Lookup::TimedOut => {
            let what = "the resolver has no answer after three seconds".to_owned();
            let costs = "each program that asks for this host's name waits as long, or longer";
            report.find(find(Severity::Warn, "hostname-slow", what, costs));
        }
        Lookup::Failed(error) => {
            let costs = "a program that looks for its own address by name fails";
            report.find(find(Severity::Note, "hostname-unknown", error, costs));
        }
        Lookup::Found(addresses) => {
            let loopback: Vec<String> = addresses
                .iter()
                .map(IpAddr::to_canonical)
                .filter(IpAddr::is_loopback)
                .map(|ip| ip.to_string())
                .collect();
            if !loopback.is_empty() && address.is_some() {
                let what = format!("the host's name stands for loopback: {}", loopback.join(", "));
                let costs =
                    "if rank 0 listens at the host's name, ranks of other hosts do not reach it";
                return report.find(find(Severity::Note, "hostname-loopback", what, costs));
            }
            let listed: Vec<String> = addresses.iter().map(IpAddr::to_string).collect();
            report.well(format!("the host's name {name} stands for {}", listed.join(", ")));
        }
    }
}
