//! `invar run`: runs a program for libibverbs on software NICs.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::{env, fs};

use invar::AddressFamily;
use invar_linux::soft;

use crate::failure::Failure;

/// The library in the folder where cargo builds it beside this command.
const BUILT: &str = "libinvar_soft_verbs.so";
/// The library in a package, from the folder of this command.
const INSTALLED: &str = "../lib/invar/libibverbs.so.1";

/// The setting that names the devices, which the library reads.
const DEVICES: &str = "INVAR_SOFT_DEVICES";

/// Run an RDMA program on software NICs instead of RDMA hardware.
///
/// The program and its children find Invar's libibverbs.so.1 in place of the system's. `invar devices`
/// shows the devices.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Invar's libibverbs.so.1, if it is not where this command looks for it
    #[arg(long, value_name = "FILE")]
    library: Option<PathBuf>,
    /// Devices that the program sees, in this order, by the name of an interface or device, as in `eth1,eth0`
    /// [default: INVAR_SOFT_DEVICES, or else all]
    #[arg(long, value_name = "LIST")]
    devices: Option<String>,
    /// The program and its arguments
    #[arg(trailing_var_arg = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let library = match &args.library {
        Some(path) => {
            let refuse = |why| Failure::usage(format_args!("--library {}: {why}", path.display()));
            let path = found(path).ok_or_else(|| refuse("no such file"))?;
            // The loader would go on without a file that it cannot preload.
            match is_library(&path) {
                true => path,
                false => return Err(refuse("it is no libibverbs")),
            }
        }
        None => beside_the_command()?,
    };
    // The loader splits the variable at these characters.
    if library.as_os_str().as_bytes().iter().any(|byte| b" :".contains(byte)) {
        let path = library.display();
        return Err(Failure::new(format_args!(
            "{path}: the loader takes no path with a space or colon; copy the library elsewhere, and \
             name it with --library"
        )));
    }
    if let Some(list) = &args.devices {
        check(list, "--devices")?;
    } else if let Some(list) = env::var_os(DEVICES) {
        check(&list.to_string_lossy(), DEVICES)?;
    }
    let [program, arguments @ ..] = args.command.as_slice() else {
        return Err(Failure::usage("no program to run"));
    };
    let mut preload = library.into_os_string();
    if let Some(others) = env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        preload.push(":");
        preload.push(others);
    }
    let mut command = Command::new(program);
    if let Some(list) = &args.devices {
        command.env(DEVICES, list);
    }
    let error = command.args(arguments).env("LD_PRELOAD", preload).exec();
    let name = Path::new(program).display();
    Err(match error.kind() {
        io::ErrorKind::NotFound => Failure::new(format_args!("{name}: no such program")),
        _ => Failure::io(name, &error),
    })
}

/// Checks that each name of a list is that of a device, before the program finds fewer devices.
fn check(list: &str, named_by: &str) -> Result<(), Failure> {
    let devices = soft::devices(AddressFamily::Any)
        .map_err(|error| Failure::io("listing the network interfaces", &error))?;
    let chosen = soft::choose(devices, list);
    chosen.map_err(|unknown| Failure::usage(format_args!("{named_by}: {unknown}"))).map(drop)
}

fn found(path: &Path) -> Option<PathBuf> {
    path.canonicalize().ok().filter(|path| path.is_file())
}

/// Whether a file is a shared object with the first function that programs call.
fn is_library(path: &Path) -> bool {
    let bytes = fs::read(path).unwrap_or_default();
    let name = b"\0ibv_get_device_list\0";
    bytes.starts_with(b"\x7fELF") && bytes.windows(name.len()).any(|window| window == name)
}

fn beside_the_command() -> Result<PathBuf, Failure> {
    let command =
        env::current_exe().map_err(|error| Failure::io("the path of this command", &error))?;
    let folder = command.parent().unwrap_or(Path::new("/"));
    let places = [BUILT, INSTALLED].map(|name| folder.join(name));
    places.iter().find_map(|path| found(path)).ok_or_else(|| {
        let [built, installed] = places.each_ref().map(|path| path.display());
        Failure::new(format_args!(
            "Invar's libibverbs is neither {built} nor {installed}: every package of Invar has it, and \
             in a checkout `cargo build --release -p invar-soft-verbs` builds it; --library names it \
             elsewhere"
        ))
    })
}
