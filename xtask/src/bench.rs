//! `cargo xtask bench`: measures Invar's cost beside NCCL, the kernel's transports and Open MPI.

mod callgrind;
mod coll;
mod collnet;
mod instructions;
pub(crate) mod plot;
mod plugin;
mod processors;
mod protocol;
mod proxy;
mod socket;
mod soft_nic;
mod soft_verbs;
mod tcp;
mod torch;
mod udp;
mod verbs;
mod waiting;

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::ValueEnum;

use crate::shell::Shell;
use plot::{Figure, Values};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The group to measure. Without a name, all groups are measured.
    group: Option<Group>,
    /// Measure only the cases with these names.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    case: Vec<String>,
    /// For instruction counts: show the K most expensive functions of each case.
    #[arg(long, value_name = "K", default_value_t = 0)]
    top: usize,
    /// Fail if a case misses its bar, if one is not measured, or if no case has a bar.
    #[arg(long)]
    check: bool,
    /// Also write the results into this folder, as values (CSV) and as plots (SVG).
    #[arg(long, value_name = "FOLDER")]
    plot: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Group {
    /// Instructions of an operation, counted by callgrind. Every run and every host gives equal counts.
    Protocol,
    /// Instructions of an operation, with the libibverbs adapter below the protocol.
    Verbs,
    /// Instructions of an operation, through the function table that NCCL calls.
    Plugin,
    /// The software NIC over loopback, beside the kernel's transports in the same minute. Only the ratios
    /// hold on other hosts.
    SoftNic,
    /// perftest on the libibverbs of `invar run` beside `invar perf`.
    SoftVerbs,
    /// The socket transport beside a bare TCP stream in the same minute.
    Socket,
    /// All-reduce beside Open MPI's in the same minute. Open MPI must be installed.
    Coll,
    /// The plugin's collNet beside `invar coll`, and beside messages through the plugin in a ring.
    Collnet,
    /// The example `proxy`, beside the same bytes over connections without a proxy.
    Proxy,
    /// Collectives of torch.distributed, by gloo and by Invar in the same run. `INVAR_BENCH_PYTHON` may name
    /// the Python that has PyTorch.
    Torch,
    /// Blocking round trips and collectives beside TCP's and Open MPI's, on idle and on busy processors, and the
    /// processor time of idle connections.
    Waiting,
}

impl Args {
    fn wants(&self, case: &str) -> bool {
        self.case.is_empty() || self.case.iter().any(|name| name == case)
    }

    /// Writes the figure's files if the user gave `--plot`.
    fn plot(&self, figure: &Figure, values: &Values) -> Result<()> {
        self.plot.as_deref().map_or(Ok(()), |folder| figure.write(folder, values))
    }
}

pub(crate) fn run(shell: &Shell, args: &Args) -> Result<()> {
    let groups = args.group.map_or(Group::value_variants().to_vec(), |group| vec![group]);
    let names: Vec<&str> = groups.iter().flat_map(|group| group.cases()).collect();
    if let Some(unknown) = args.case.iter().find(|case| !names.contains(&case.as_str())) {
        bail!("no case {unknown}; there are {}", names.join(", "));
    }
    if args.check && !has_bar(&groups, args) {
        bail!("--check has nothing to check: none of the cases has a bar");
    }
    let mut missed = Vec::new();
    for group in groups {
        if group.cases().iter().any(|case| args.wants(case)) {
            missed.extend(match group {
                Group::Protocol => protocol::run(shell, args)?,
                Group::Verbs => verbs::run(shell, args)?,
                Group::Plugin => plugin::run(shell, args)?,
                Group::SoftNic => soft_nic::run(shell, args)?,
                Group::SoftVerbs => soft_verbs::run(shell, args)?,
                Group::Socket => socket::run(shell, args)?,
                Group::Coll => coll::run(shell, args)?,
                Group::Collnet => collnet::run(shell, args)?,
                Group::Proxy => proxy::run(shell, args)?,
                Group::Torch => torch::run(shell, args)?,
                Group::Waiting => waiting::run(shell, args)?,
            });
        }
    }
    if args.check && !missed.is_empty() {
        bail!("these miss their bar: {}", missed.join(", "));
    }
    Ok(())
}

/// Whether a case that the user asks for has a bar.
fn has_bar(groups: &[Group], args: &Args) -> bool {
    groups.iter().flat_map(|group| group.barred()).any(|case| args.wants(case))
}

impl Group {
    fn cases(self) -> Vec<&'static str> {
        match self {
            Group::Protocol => protocol::CASES.iter().map(|case| case.name).collect(),
            Group::Verbs => verbs::CASES.iter().map(|case| case.name).collect(),
            Group::Plugin => plugin::CASES.iter().map(|case| case.name).collect(),
            Group::SoftNic => soft_nic::cases(),
            Group::SoftVerbs => soft_verbs::cases(),
            Group::Socket => socket::LINKS.iter().map(|link| link.name).collect(),
            Group::Coll => coll::cases(),
            Group::Collnet => collnet::cases(),
            Group::Proxy => proxy::cases(),
            Group::Torch => torch::cases(),
            Group::Waiting => waiting::cases(),
        }
    }

    /// The cases that have a bar.
    fn barred(self) -> Vec<&'static str> {
        match self {
            Group::Protocol => instructions::barred(&protocol::CASES),
            Group::Verbs => instructions::barred(&verbs::CASES),
            Group::Plugin => instructions::barred(&plugin::CASES),
            Group::SoftNic => soft_nic::barred(),
            Group::Socket => socket::barred(),
            Group::Coll => coll::barred(),
            Group::Proxy => Vec::new(),
            Group::SoftVerbs | Group::Collnet | Group::Torch | Group::Waiting => self.cases(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_without_a_bar_are_nothing_to_check() {
        let has_bar = |group, case: &[&str]| {
            let case = case.iter().map(|case| (*case).to_owned()).collect();
            let args = Args { group: Some(group), case, top: 0, check: true, plot: None };
            has_bar(&[group], &args)
        };
        assert!(!has_bar(Group::Verbs, &[]) && !has_bar(Group::Proxy, &[]));
        assert!(has_bar(Group::Protocol, &[]) && !has_bar(Group::Protocol, &["msg8-q2"]));
        assert!(has_bar(Group::SoftNic, &["soft"]) && !has_bar(Group::SoftNic, &["udp-gso"]));
        assert!(has_bar(Group::Socket, &["socket"]) && !has_bar(Group::Socket, &["raw"]));
        assert!(has_bar(Group::Coll, &[]) && !has_bar(Group::Coll, &["reduce"]));
    }
}
