//! `invar env`: the variables with which NCCL loads Invar's plugin.

mod loader;
mod nccl;
mod plugin;
mod python;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{env, io};

use serde::Serialize;

use crate::failure::{Failure, line};
use crate::output::{pretty_json, print};
use nccl::{Nccl, NcclVersion};
use plugin::Plugin;

/// Since this version `NCCL_NET_PLUGIN` may be a path.
const TAKES_PATH: NcclVersion = NcclVersion::new(2, 28);
/// NCCL keeps so many bytes of the path (`plugin_open.cc`).
const PATH_BYTES_MAX: usize = 254;

/// Print the `export` lines with which NCCL loads Invar's plugin.
///
/// Use them in a shell as `eval "$(invar env)"`. The lines fit the NCCL of this host: the one of the active
/// Python environment, or else the one that the loader finds.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// NCCL's library, or the directory that has it [default: search]
    #[arg(long, value_name = "PATH")]
    nccl: Option<PathBuf>,

    /// The plugin, or the directory that has it [default: search]
    #[arg(long, value_name = "PATH")]
    plugin: Option<PathBuf>,

    /// Print JSON: an object with plugin, NCCL and variables
    #[arg(long)]
    json: bool,
}

/// The findings of the command, and its advice.
#[derive(Serialize)]
struct Advice<'a> {
    plugin: &'a Plugin,
    /// `null` if this host has no NCCL.
    nccl: Option<&'a Nccl>,
    environment: BTreeMap<&'static str, String>,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let plugin = Plugin::find(args.plugin.as_deref())?;
    let nccl = Nccl::find(args.nccl.as_deref())?;
    if let Some((nccl, version)) = nccl.as_ref().and_then(|nccl| Some((nccl, nccl.version?))) {
        nccl.check_served(version)?;
    }
    let old_path = env::var_os("LD_LIBRARY_PATH").unwrap_or_default().into_string();
    let old_path = old_path.map_err(|_| {
        Failure::new("LD_LIBRARY_PATH is not UTF-8: these variables would replace it")
    })?;
    let version = nccl.as_ref().and_then(|nccl| nccl.version);
    let environment = environment(&plugin, version, &old_path)?;
    let text = if args.json {
        let advice = Advice { plugin: &plugin, nccl: nccl.as_ref(), environment };
        pretty_json(&advice)?
    } else {
        as_shell(&plugin, nccl.as_ref(), &environment)
    };
    print(io::stdout(), "the variables", &text)?;
    Ok(ExitCode::SUCCESS)
}

/// The variables for an NCCL of this version. Without a version they suit every NCCL.
fn environment(
    plugin: &Plugin,
    version: Option<NcclVersion>,
    old_path: &str,
) -> Result<BTreeMap<&'static str, String>, Failure> {
    let mut variables = BTreeMap::from([("NCCL_NET", "Invar".to_owned())]);
    let mut name = "invar".to_owned();
    if !plugin.loader_finds_it {
        let path = text(&plugin.path)?;
        if version.is_some_and(|version| version >= TAKES_PATH) && path.len() <= PATH_BYTES_MAX {
            name = path.to_owned();
        } else {
            let directory = text(plugin.path.parent().unwrap_or(Path::new("/")))?;
            let path = if old_path.is_empty() {
                directory.to_owned()
            } else {
                format!("{directory}:{old_path}")
            };
            variables.insert("LD_LIBRARY_PATH", path);
        }
    }
    variables.insert("NCCL_NET_PLUGIN", name);
    Ok(variables)
}

/// A path as text. NCCL and the shell get the path in a variable.
fn text(path: &Path) -> Result<&str, Failure> {
    let refuse = |why| Failure::usage(format_args!("{}: {why}", path.display()));
    let text = path.to_str().ok_or_else(|| refuse("the path is not UTF-8: install elsewhere"))?;
    if text.contains(|c: char| matches!(c, ':' | ';') || c.is_control()) {
        let why = "the loader takes no path with a colon, a semicolon or a control character: install \
                   elsewhere";
        return Err(refuse(why));
    }
    Ok(text)
}

fn as_shell(
    plugin: &Plugin,
    nccl: Option<&Nccl>,
    environment: &BTreeMap<&'static str, String>,
) -> String {
    let about_nccl = match nccl {
        Some(nccl) => nccl.to_string(),
        None => "no NCCL found; these lines suit NCCL 2.14 and later".to_owned(),
    };
    // A line break would end the comment, and a shell would run the rest.
    let plugin = line(&plugin.path.display());
    let mut lines = vec![format!("# plugin: {plugin}"), format!("# {}", line(&about_nccl))];
    for (name, value) in environment {
        lines.push(format!("export {name}={}", quoted(value)));
    }
    lines.join("\n")
}

/// The value as one word of a POSIX shell.
fn quoted(value: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-:+,@%".contains(c);
    if value.chars().all(is_plain) {
        return value.to_owned();
    }
    format!("'{}'", value.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plugin(loader_finds_it: bool) -> Plugin {
        let path = PathBuf::from("/opt/invar/lib/libnccl-net-invar.so");
        Plugin { path, interfaces: vec![6], loader_finds_it }
    }

    fn variables(plugin: &Plugin, version: Option<NcclVersion>, old: &str) -> Vec<String> {
        let variables = environment(plugin, version, old).unwrap();
        variables.into_iter().map(|(name, value)| format!("{name}={value}")).collect()
    }

    #[test]
    fn an_installed_plugin_needs_no_path() {
        let expected = ["NCCL_NET=Invar", "NCCL_NET_PLUGIN=invar"];
        assert_eq!(variables(&plugin(true), None, "/old"), expected);
        assert_eq!(variables(&plugin(true), Some(NcclVersion::new(2, 30)), ""), expected);
    }

    #[test]
    fn an_old_or_unknown_nccl_searches_the_directory() {
        for version in [None, Some(NcclVersion::new(2, 14)), Some(NcclVersion::new(2, 27))] {
            assert_eq!(
                variables(&plugin(false), version, "/old"),
                ["LD_LIBRARY_PATH=/opt/invar/lib:/old", "NCCL_NET=Invar", "NCCL_NET_PLUGIN=invar"]
            );
        }
    }

    #[test]
    fn a_later_nccl_takes_the_path_of_the_plugin() {
        assert_eq!(
            variables(&plugin(false), Some(NcclVersion::new(2, 28)), "/old"),
            ["NCCL_NET=Invar", "NCCL_NET_PLUGIN=/opt/invar/lib/libnccl-net-invar.so"]
        );
    }

    #[test]
    fn a_shell_reads_a_value_as_one_word() {
        assert_eq!(quoted("/opt/a-b:/c"), "/opt/a-b:/c");
        assert_eq!(quoted("/opt/it's here"), r"'/opt/it'\''s here'");
    }

    #[test]
    fn no_part_of_a_path_becomes_a_command() {
        let strange = Plugin { path: "/a\ntouch b/libnccl-net-invar.so".into(), ..plugin(true) };
        let text = as_shell(&strange, None, &BTreeMap::new());
        assert!(text.lines().all(|line| line.starts_with("# ")), "{text}");
    }

    #[test]
    fn a_path_that_the_loader_would_split_is_refused() {
        let strange = Plugin { path: "/a:b/libnccl-net-invar.so".into(), ..plugin(false) };
        let failure = environment(&strange, None, "").unwrap_err();
        assert!(failure.to_string().contains("/a:b"), "{failure}");
    }
}
