//! `invar run`: runs a program for libibverbs on software NICs.

use std::ffi::OsString;
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::{env, fs};

use invar::AddressFamily;
use invar_linux::{recorder, soft};
use rustix::process::geteuid;

use crate::failure::Failure;

/// The library in the folder where cargo builds it beside this command.
const BUILT: &str = "libinvar_soft_verbs.so";
/// The library in a package. Its folder has no other file.
const INSTALLED: &str = "lib/invar/libibverbs.so";
/// The name by which programs load libibverbs while they run. They try `libibverbs.so.1` only after it.
const LOADED: &str = "libibverbs.so";

/// The setting that names the devices, which the library reads.
const DEVICES: &str = "INVAR_SOFT_DEVICES";

/// Run an RDMA program on software NICs instead of RDMA hardware.
///
/// The program and its children find Invar's libibverbs in place of the system's. `invar devices` shows the
/// devices.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Invar's libibverbs, if it is not where this command looks for it
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
    let preload = first_in("LD_PRELOAD", &library)?;
    let library_path = first_in("LD_LIBRARY_PATH", &folder(&library)?)?;
    if let Some(list) = &args.devices {
        check(list, "--devices")?;
    } else if let Some(list) = env::var_os(DEVICES) {
        check(&list.to_string_lossy(), DEVICES)?;
    }
    let [program, arguments @ ..] = args.command.as_slice() else {
        return Err(Failure::usage("no program to run"));
    };
    let mut command = Command::new(program);
    command.env("LD_PRELOAD", preload).env("LD_LIBRARY_PATH", library_path);
    // AddressSanitizer would end a program that has a preloaded library.
    let sanitizer = env::var_os("ASAN_OPTIONS").unwrap_or_default();
    command.env("ASAN_OPTIONS", joined(sanitizer, "verify_asan_link_order=0".into()));
    if let Some(list) = &args.devices {
        command.env(DEVICES, list);
    }
    let error = command.args(arguments).exec();
    let name = Path::new(program).display();
    Err(match error.kind() {
        ErrorKind::NotFound => Failure::new(format_args!("{name}: no such program")),
        _ => Failure::io(name, &error),
    })
}

/// Puts a path before those of a variable of the loader.
fn first_in(variable: &str, path: &Path) -> Result<OsString, Failure> {
    // The loader splits one or the other variable at these characters.
    if path.as_os_str().as_bytes().iter().any(|byte| b" :;".contains(byte)) {
        let path = path.display();
        return Err(Failure::new(format_args!(
            "{path}: the loader takes no path with a space, colon or semicolon; copy the library \
             elsewhere and name it with --library, or set another XDG_RUNTIME_DIR"
        )));
    }
    Ok(joined(path.into(), env::var_os(variable).unwrap_or_default()))
}

/// Joins two lists of a variable.
fn joined(mut list: OsString, others: OsString) -> OsString {
    if !list.is_empty() && !others.is_empty() {
        list.push(":");
    }
    list.push(others);
    list
}

/// Returns the folder in which the loader finds the library as `libibverbs.so`.
///
/// The loader knows a preloaded library as `libibverbs.so.1` alone. For `libibverbs.so` it searches its folders. If
/// it finds the same file there, it takes the library that is loaded already.
fn folder(library: &Path) -> Result<PathBuf, Failure> {
    if library.ends_with(INSTALLED)
        && let Some(folder) = library.parent()
    {
        return Ok(folder.to_owned());
    }
    let top = recorder::directory();
    // Each library has a folder of its own, which stays for the next run.
    let folder = top.join("libraries").join(library.strip_prefix("/").unwrap_or(library));
    let create = || -> io::Result<()> {
        allow_existing(fs::DirBuilder::new().mode(0o700).create(&top))?;
        let of = fs::symlink_metadata(&top)?;
        if !of.is_dir() || of.uid() != geteuid().as_raw() || of.mode() & 0o077 != 0 {
            let text = "it is no folder of this user alone";
            return Err(io::Error::new(ErrorKind::PermissionDenied, text));
        }
        fs::create_dir_all(&folder)?;
        allow_existing(symlink(library, folder.join(LOADED)))
    };
    create().map_err(|error| Failure::io(top.display(), &error))?;
    Ok(folder)
}

fn allow_existing(created: io::Result<()>) -> io::Result<()> {
    created.or_else(|error| match error.kind() {
        ErrorKind::AlreadyExists => Ok(()),
        _ => Err(error),
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
    let prefix = folder.parent().unwrap_or(folder);
    let places = [folder.join(BUILT), prefix.join(INSTALLED)];
    places.iter().find_map(|path| found(path)).ok_or_else(|| {
        let [built, installed] = places.each_ref().map(|path| path.display());
        Failure::new(format_args!(
            "Invar's libibverbs is neither {built} nor {installed}: every package of Invar has it, and \
             in a checkout `cargo build --release -p invar-soft-verbs` builds target/release/{BUILT}; \
             copy it to either path, or name it with --library"
        ))
    })
}
