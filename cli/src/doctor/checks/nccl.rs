//! NCCL's library, and the network plugin that it loads.

use std::path::{Path, PathBuf};

use crate::doctor::host::Host;
use crate::doctor::loader;
use crate::doctor::report::{Finding, Report, Severity};

const OURS: &str = "libnccl-net-invar.so";
/// The plugin that NCCL loads if `NCCL_NET_PLUGIN` names none.
const UNNAMED: &str = "libnccl-net.so";
/// The first NCCL that Invar's plugin serves.
const FIRST: (u32, u32) = (2, 14);

const NOT_USED: &str = "NCCL uses a network of its own and does not say so";
const NAME_IT: &str = "export NCCL_NET_PLUGIN=invar NCCL_NET=Invar";

pub(super) fn check(host: &Host, report: &mut Report) {
    let folders = loader::folders(host);
    library(&folders, report);
    plugin(host, &folders, report);
}

fn find(
    severity: Severity,
    id: &'static str,
    subject: &str,
    what: String,
    costs: &str,
    mend: String,
) -> Finding {
    let (subject, costs) = (subject.to_owned(), costs.to_owned());
    Finding { severity, id, subject, what, costs, mend }
}

/// Looks for libnccl. PyTorch brings one of its own, which the loader's folders do not show.
fn library(folders: &[PathBuf], report: &mut Report) {
    let found = loader::distinct(loader::libraries(folders, |name| name == "libnccl.so.2"));
    let version = |path: &PathBuf| {
        loader::nccl_version(path).unwrap_or_else(|| "of unknown version".to_owned())
    };
    let Some(first) = found.first() else {
        return report.well("no libnccl.so.2 in the loader's folders; PyTorch brings its own");
    };
    let ours = version(first);
    if loader::numbers(&ours).is_some_and(|numbers| numbers < FIRST) {
        report.find(find(
            Severity::Bad,
            "nccl-old",
            &shown(first),
            format!(
                "NCCL {ours} is older than {}.{}, the first that loads Invar",
                FIRST.0, FIRST.1
            ),
            "NCCL does not use Invar",
            "apt-get install libnccl2   # from NVIDIA's packages".to_owned(),
        ));
    } else {
        report.well(format!("{}: NCCL {ours}", shown(first)));
    }
    for other in &found[1..] {
        report.find(find(
            Severity::Note,
            "nccl-shadowed",
            &shown(other),
            format!("NCCL {}, which {} (NCCL {ours}) hides", version(other), shown(first)),
            "programs load another NCCL than you may think",
            format!(
                "export LD_LIBRARY_PATH={}:$LD_LIBRARY_PATH   # if this one is meant",
                folder(other)
            ),
        ));
    }
}

fn plugin(host: &Host, folders: &[PathBuf], report: &mut Report) {
    let all =
        loader::libraries(folders, |name| name.starts_with("libnccl-net") && name.ends_with(".so"));
    let named = |file: &str| -> Vec<PathBuf> {
        all.iter()
            .filter(|path| path.file_name().is_some_and(|name| name == file))
            .cloned()
            .collect()
    };
    let (ours, net) = (named(OURS), host.var("NCCL_NET"));
    let Some(asked) = host.var("NCCL_NET_PLUGIN") else {
        return unnamed(&ours, &named(UNNAMED), net, report);
    };
    if asked.eq_ignore_ascii_case("none") {
        if ours.is_empty() && !is_ours(net) {
            return report.well("NCCL_NET_PLUGIN=none: NCCL loads no plugin");
        }
        let what = "none keeps NCCL from loading a plugin".to_owned();
        return report.find(find(
            Severity::Warn,
            "plugin-off",
            "NCCL_NET_PLUGIN",
            what,
            NOT_USED,
            NAME_IT.to_owned(),
        ));
    }
    for name in asked.split(',').map(str::trim).filter(|name| !name.is_empty()) {
        let candidates = match name.contains('/') {
            true => Some(host.root.path(name)).into_iter().filter(|path| path.is_file()).collect(),
            false => [named(&format!("libnccl-net-{name}.so")), named(name)].concat(),
        };
        let Some(first) = candidates.first() else {
            report.find(missing(name, &ours, net));
            continue;
        };
        for other in &loader::distinct(candidates.clone())[1..] {
            report.find(find(
                Severity::Warn,
                "plugin-shadowed",
                &shown(other),
                format!("{} hides this plugin", shown(first)),
                "NCCL may load an old plugin, and unequal plugins do not connect",
                format!(
                    "export LD_LIBRARY_PATH={}${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}   # if NCCL \
                     shall load the hidden one; if not, uninstall that one",
                    folder(other)
                ),
            ));
        }
        if first.file_name().is_some_and(|file| file == OURS) {
            network(net, report);
            report.well(format!("NCCL loads {}", shown(first)));
        } else if !ours.is_empty() {
            report.find(find(
                Severity::Note,
                "plugin-other",
                "NCCL_NET_PLUGIN",
                format!("{name}: NCCL loads {}, and not {}", shown(first), shown(&ours[0])),
                "NCCL does not use Invar",
                NAME_IT.to_owned(),
            ));
        }
    }
}

/// Reports the plugin that NCCL loads if `NCCL_NET_PLUGIN` is not set.
fn unnamed(ours: &[PathBuf], others: &[PathBuf], net: Option<&str>, report: &mut Report) {
    let wants_us = is_ours(net);
    match (others.first(), ours.first()) {
        (Some(other), Some(_)) => report.find(find(
            Severity::Warn,
            "plugin-other",
            &shown(other),
            "NCCL_NET_PLUGIN is not set: NCCL loads this plugin, and not Invar's".to_owned(),
            "NCCL does not use Invar",
            NAME_IT.to_owned(),
        )),
        (None, Some(ours)) => report.find(find(
            Severity::Warn,
            "plugin-not-named",
            &shown(ours),
            "NCCL_NET_PLUGIN is not set: NCCL does not load this plugin".to_owned(),
            NOT_USED,
            NAME_IT.to_owned(),
        )),
        (_, None) if wants_us => report.find(missing("invar", ours, net)),
        (Some(other), None) => {
            report.well(format!("NCCL loads {}; Invar's plugin is not there", shown(other)))
        }
        (None, None) => report.well("no network plugin of NCCL in the loader's folders"),
    }
}

/// The plugin is loaded. `NCCL_NET` decides whether NCCL uses it.
fn network(net: Option<&str>, report: &mut Report) {
    let export = "export NCCL_NET=Invar".to_owned();
    match net {
        Some(_) if is_ours(net) => {}
        Some(net) => report.find(find(
            Severity::Bad,
            "net-other",
            "NCCL_NET",
            format!("{net} is another network than Invar, whose plugin NCCL loads"),
            "NCCL does not use the plugin",
            export,
        )),
        None => report.find(find(
            Severity::Note,
            "net-not-named",
            "NCCL_NET",
            "it is not set: NCCL falls back to a network of its own if the plugin fails".to_owned(),
            "a broken plugin shows only by its speed",
            export,
        )),
    }
}

/// Whether `NCCL_NET` names Invar. NCCL compares the names without regard to case.
fn is_ours(net: Option<&str>) -> bool {
    net.is_some_and(|net| net.eq_ignore_ascii_case("Invar"))
}

fn missing(name: &str, ours: &[PathBuf], net: Option<&str>) -> Finding {
    let what = match name.contains('/') {
        true => format!("{name}: there is no such file"),
        false => {
            format!("{name}: the loader's folders have neither libnccl-net-{name}.so nor {name}")
        }
    };
    // NCCL does not replace a network that NCCL_NET names.
    let costs = if is_ours(net) { "NCCL does not start" } else { NOT_USED };
    let mend = match ours.first() {
        Some(_) => NAME_IT.to_owned(),
        None => "eval \"$(invar env)\"   # finds the plugin of this package, or says how to get it"
            .to_owned(),
    };
    find(Severity::Bad, "plugin-missing", "NCCL_NET_PLUGIN", what, costs, mend)
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

fn folder(path: &Path) -> String {
    path.parent().map(shown).unwrap_or_default()
}
