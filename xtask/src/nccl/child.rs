//! The process that loads an NCCL and lets it pick a network.
//!
//! A communicator needs a GPU. Each communicator picks its network in `ncclNetInit`, before NCCL first
//! calls the driver for it. That function is no part of NCCL's API, but every wheel has a symbol table. The
//! process finds the function there, and gives it a communicator of zeros. Before that it calls the functions of
//! [`BEFORE`] that the release has, in the order in which a communicator does.

use std::ffi::{c_char, c_int, c_void};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use libloading::os::unix::{Library, RTLD_LAZY, RTLD_LOCAL};
use object::read::elf::ElfFile64;
use object::{Endianness, Object, ObjectSymbol, ReadCache};

/// `ncclNetInit(ncclComm*)`, as the C++ compiler names it.
const NET_INIT: &str = "_Z11ncclNetInitP8ncclComm";
/// Functions that take the communicator and come before: one takes `NCCL_NET` over (since 2.18), the other
/// loads the plugin (2.22 to 2.26).
const BEFORE: [&str; 2] = ["_ZL17envConfigOverrideP8ncclComm", "_Z17ncclNetPluginLoadP8ncclComm"];
/// A function of the API, to learn where the library was loaded.
const GET_VERSION: &str = "ncclGetVersion";
/// More than the size of any `ncclComm`: 2.32.3 needs less than 1 MiB.
const COMM_PAGES: usize = 4096;
/// The names of networks that a release may pick.
const NETWORKS: [&str; 3] = ["Invar", "Socket", "IB"];

/// The start of the line with the results, as `key=value` pairs.
pub(super) const RESULT: &str = "result of NCCL:";

/// A function that takes a communicator.
type OfComm = unsafe extern "C" fn(*mut c_void) -> c_int;

/// A page of a communicator.
#[derive(Clone, Copy)]
#[repr(align(4096))]
struct Page([u8; 4096]);

/// Loads the library, and prints what it picks. The variables decide the rest.
pub(super) fn run(path: &Path) -> Result<()> {
    let offsets = Offsets::read(path)?;
    // SAFETY: this runs the constructors of NCCL, as in each program that links it.
    let library = unsafe { Library::open(Some(path), RTLD_LAZY | RTLD_LOCAL) };
    let library = library.with_context(|| path.display().to_string())?;
    type GetVersion = unsafe extern "C" fn(*mut c_int) -> c_int;
    // SAFETY: nccl.h declares the function with this type.
    let version_of = unsafe { library.get::<GetVersion>(GET_VERSION.as_bytes())? };
    let mut version = 0;
    // SAFETY: the function writes one number.
    let code = unsafe { version_of(&mut version) };
    ensure!(code == 0, "ncclGetVersion returned {code}");
    // NCCL reads its variables and finds its interface here. Up to 2.21 it also loads the plugin.
    type GetUniqueId = unsafe extern "C" fn(*mut [c_char; 128]) -> c_int;
    // SAFETY: nccl.h declares the function with this type.
    let unique_id = unsafe { library.get::<GetUniqueId>(b"ncclGetUniqueId")? };
    let mut id = [0; 128];
    // SAFETY: the function fills 128 bytes.
    let code = unsafe { unique_id(&mut id) };
    ensure!(code == 0, "ncclGetUniqueId returned {code}");

    let base = (*version_of as *const u8).addr().wrapping_sub(offsets.get_version as usize);
    let mut comm = vec![Page([0; 4096]); COMM_PAGES];
    let mut call = |offset: u64| {
        let address = base.wrapping_add(offset as usize);
        // SAFETY: the address is that of a function in the loaded file, whose name says that it takes a
        // communicator. All of them return an `ncclResult_t`. The memory is larger than a communicator, and
        // zeros are how NCCL allocates one.
        unsafe { std::mem::transmute::<usize, OfComm>(address)(comm.as_mut_ptr().cast()) }
    };
    for (offset, name) in offsets.before.into_iter().zip(BEFORE) {
        let code = offset.map_or(0, &mut call);
        ensure!(code == 0, "{name} returned {code}");
    }
    let code = call(offsets.net_init);
    let network = networks(&comm)?.join("+");
    println!("{RESULT} version={version} code={code} network={network}");
    // The plugin's threads may still run, so that the library must stay.
    std::mem::forget(library);
    Ok(())
}

/// The addresses of functions in the file.
struct Offsets {
    get_version: u64,
    before: [Option<u64>; 2],
    net_init: u64,
}

impl Offsets {
    fn read(path: &Path) -> Result<Offsets> {
        let cache = ReadCache::new(File::open(path).with_context(|| path.display().to_string())?);
        let file = ElfFile64::<Endianness, _>::parse(&cache)?;
        let find = |name: &str| {
            let symbol = file.symbols().find(|symbol| symbol.name() == Ok(name));
            symbol.map(|symbol| symbol.address())
        };
        let must = |name: &str| find(name).with_context(|| format!("no symbol {name}"));
        Ok(Offsets {
            get_version: must(GET_VERSION)?,
            before: BEFORE.map(find),
            net_init: must(NET_INIT)?,
        })
    }
}

/// The names of the networks that a communicator refers to. A network is a structure that begins with a
/// pointer to its name. The kernel reads the memory, so a word that is no pointer does no harm.
fn networks(comm: &[Page]) -> Result<Vec<&'static str>> {
    let memory = File::open("/proc/self/mem").context("/proc/self/mem")?;
    let mut found = Vec::new();
    for word in comm.iter().flat_map(|page| page.0.as_chunks().0) {
        let name = || {
            let structure = u64::from_le_bytes(*word);
            let (mut pointer, mut text) = ([0; 8], [0; 8]);
            memory.read_exact_at(&mut pointer, structure).ok()?;
            memory.read_exact_at(&mut text, u64::from_le_bytes(pointer)).ok()?;
            let text = text.split(|byte| *byte == 0).next()?;
            NETWORKS.into_iter().find(|name| name.as_bytes() == text)
        };
        if let Some(name) = (*word != [0; 8]).then(name).flatten()
            && !found.contains(&name)
        {
            found.push(name);
        }
    }
    Ok(found)
}
