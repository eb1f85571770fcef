//! Finds Invar's plugin on this host.

use std::env;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::loader::Loaded;
use crate::failure::Failure;

/// The file that NCCL opens for `NCCL_NET_PLUGIN=invar`.
const NAME: &str = "libnccl-net-invar.so";
/// Directories of a plugin, relative to the directory of the command. The last two are the layouts of the wheel and of
/// `cargo xtask plugin`.
const BESIDE_COMMAND: [&str; 5] =
    ["../lib", "../lib/x86_64-linux-gnu", "../lib64", "..", "../plugin"];

/// A plugin that loads.
#[derive(Serialize)]
pub(super) struct Plugin {
    pub(super) path: PathBuf,
    /// The versions of NCCL's interface that the plugin has.
    pub(super) interfaces: Vec<u32>,
    /// Whether the loader finds this plugin by its name alone.
    pub(super) loader_finds_it: bool,
}

impl Plugin {
    /// Takes the plugin at `wanted`, or else the one installed with this command, or else the one that the
    /// loader finds. Loads the plugin to see that it works.
    pub(super) fn find(wanted: Option<&Path>) -> Result<Plugin, Failure> {
        // Ask the loader first. Once a plugin is in this process, the loader takes it for its name.
        let by_name = Loaded::open(NAME).ok().and_then(|loaded| file(&loaded));
        let path = match wanted {
            Some(wanted) => Some(given(wanted)?),
            None => beside_command().into_iter().find(|path| path.is_file()),
        };
        let path = path.or_else(|| by_name.clone()).ok_or_else(missing)?;
        let canonical = path.canonicalize();
        let path = canonical
            .map_err(|error| Failure::io(format_args!("reading {}", path.display()), &error))?;
        let loaded = Loaded::open(&path)
            .map_err(|error| Failure::new(format_args!("cannot load the plugin: {error}")))?;
        let interfaces = interfaces(&loaded);
        if interfaces.is_empty() {
            let text = format!("{}: is no network plugin of NCCL 2.14 or later", path.display());
            return Err(Failure::usage(text));
        }
        let loader_finds_it = by_name.is_some_and(|found| found == path);
        Ok(Plugin { path, interfaces, loader_finds_it })
    }
}

/// The path that the user gave, which may be of a directory.
fn given(wanted: &Path) -> Result<PathBuf, Failure> {
    let path = if wanted.is_dir() { wanted.join(NAME) } else { wanted.to_owned() };
    if path.is_file() {
        return Ok(path);
    }
    Err(Failure::usage(format_args!("--plugin {}: no such file", path.display())))
}

/// Where packages put the plugin.
fn beside_command() -> Vec<PathBuf> {
    let Ok(command) = env::current_exe() else { return Vec::new() };
    let Some(directory) = command.parent() else { return Vec::new() };
    BESIDE_COMMAND.iter().map(|relative| directory.join(relative).join(NAME)).collect()
}

fn missing() -> Failure {
    let directory = env::current_exe().ok();
    let directory =
        directory.as_deref().and_then(Path::parent).unwrap_or(Path::new("this command"));
    Failure::new(format_args!(
        "no {NAME} is installed with {}, and the loader finds none: name the file with --plugin, or install \
         a package of Invar, which has it",
        directory.display()
    ))
}

/// The versions of NCCL's interface for which the library has a table.
fn interfaces(loaded: &Loaded) -> Vec<u32> {
    (6..=15).filter(|version| loaded.has(&table(*version))).collect()
}

fn table(version: u32) -> String {
    format!("ncclNetPlugin_v{version}")
}

/// The file of a loaded plugin.
fn file(loaded: &Loaded) -> Option<PathBuf> {
    let version = *interfaces(loaded).first()?;
    loaded.file_of(&table(version))?.canonicalize().ok()
}
