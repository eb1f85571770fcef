//! Everything that the checks look at: the kernel's files, the environment, and the system's answers.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use invar_core::param::Params;
use invar_linux::interface::Interface;
use invar_linux::tcp::Congestion;
use rustix::net::sockopt::set_socket_recv_buffer_size_force;
use rustix::net::{AddressFamily, SocketType, socket};

use crate::parent::await_children;
use crate::settings::{environment, remove_refused};

/// The flag with which `open(2)` never waits.
const NEVER_WAITS: i32 = rustix::fs::OFlags::NONBLOCK.bits() as i32;

/// The most bytes of a file that a check reads.
const TEXT_BYTES_MAX: u64 = 1 << 20;

/// The resolver has this long. Its own time limits are often longer.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(3);

/// The names of nft: the folder of programs for root may be missing in a user's path.
const NFT: [&str; 2] = ["nft", "/usr/sbin/nft"];
/// nft has this long to list its rules.
const NFT_TIMEOUT: Duration = Duration::from_secs(10);
/// The most bytes of rules that are read.
const FILTER_BYTES_MAX: u64 = 64 << 20;

/// The host, or a stand-in for it.
pub(crate) struct Host {
    /// The root of all other files.
    pub(crate) root: Folder,
    pub(crate) sys: Folder,
    pub(crate) proc: Folder,
    pub(crate) dev: Folder,
    /// The variables as NCCL's process has them, without those that Invar refuses.
    pub(crate) env: BTreeMap<String, String>,
    /// The names of the refused variables, and why Invar refuses each.
    pub(crate) refused: Vec<(String, String)>,
    /// NCCL's files of variables, and the variables that come from each.
    pub(crate) nccl_files: NcclFiles,
    pub(crate) system: Box<dyn System>,
}

/// Files, each with the variables that come from it.
type NcclFiles = Vec<(PathBuf, Vec<String>)>;

/// Answers of system calls and libraries.
pub(crate) trait System {
    fn interfaces(&self) -> io::Result<Vec<Interface>>;
    fn hostname(&self) -> String;
    /// Asks the resolver, and waits for a bounded time.
    fn resolve(&self, name: &str) -> Lookup;
    /// The bytes that this process may lock; `None` without a limit.
    fn memlock_limit_bytes(&self) -> Option<u64>;
    /// The devices that libibverbs lists.
    fn libibverbs(&self) -> Libibverbs;
    /// The path MTUs of the active ports that Invar takes, by device and port.
    fn path_mtus(&self) -> BTreeMap<(String, u8), u32>;
    fn has_relaxed_ordering(&self) -> bool;
    /// Whether the kernel lets this process use a congestion control of TCP.
    fn takes_congestion(&self, name: &str) -> bool;
    /// Whether this process may make socket buffers longer than `net.core.*mem_max`.
    fn forces_buffers(&self) -> bool;
    /// Opens a file for reading and writing, and closes it.
    fn open(&self, path: &Path) -> io::Result<()>;
    /// The rules of nftables as JSON, or in words why this process does not see them.
    fn packet_filter(&self) -> Result<String, String>;
}

/// The answer of libibverbs.
#[derive(Clone, Debug)]
pub(crate) enum Libibverbs {
    /// The loader's message.
    Missing(String),
    /// The library's error.
    Failed(String),
    Lists(Vec<String>),
}

/// The answer of the resolver.
#[derive(Clone, Debug)]
pub(crate) enum Lookup {
    Found(Vec<IpAddr>),
    Failed(String),
    TimedOut,
}

/// The reason why a file has no text.
#[derive(Debug)]
pub(crate) enum Blind {
    Absent,
    /// The file is there, or may be there.
    Refused(io::Error),
}

/// A folder of files that the kernel, or the administrator, writes.
#[derive(Clone, Debug)]
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new(path: impl Into<PathBuf>) -> Self {
        Folder(path.into())
    }

    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.0.join(path.trim_start_matches('/'))
    }

    /// The text of a file, without blanks around it.
    pub(crate) fn text(&self, path: &str) -> Result<String, Blind> {
        let mut text = Vec::new();
        let file = open_file(&self.path(path));
        let read = file.and_then(|file: File| file.take(TEXT_BYTES_MAX).read_to_end(&mut text));
        match read {
            Ok(_) => Ok(String::from_utf8_lossy(&text).trim().to_owned()),
            Err(error)
                if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) =>
            {
                Err(Blind::Absent)
            }
            Err(error) => Err(Blind::Refused(error)),
        }
    }

    /// The text of a file, if there is one and this process may read it.
    pub(crate) fn known(&self, path: &str) -> Option<String> {
        self.text(path).ok().filter(|text| !text.is_empty())
    }

    pub(crate) fn has(&self, path: &str) -> bool {
        self.path(path).exists()
    }

    /// The names in a folder, sorted: numbers by value.
    pub(crate) fn names(&self, path: &str) -> Vec<String> {
        let entries = fs::read_dir(self.path(path)).into_iter().flatten().flatten();
        let mut names: Vec<String> =
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort_by_key(|name| (name.parse::<u64>().unwrap_or(u64::MAX), name.clone()));
        names
    }

    /// The last part of what a link leads to.
    pub(crate) fn link_name(&self, path: &str) -> Option<String> {
        let target = fs::read_link(self.path(path)).ok()?;
        Some(target.file_name()?.to_string_lossy().into_owned())
    }
}

impl Host {
    /// The host on which this process runs. Files are those below `root`, if it is given.
    pub(crate) fn here(root: Option<&Path>) -> Host {
        Host::at(root, environment(), Box::new(ThisHost))
    }

    pub(crate) fn at(
        root: Option<&Path>,
        mut env: BTreeMap<String, String>,
        system: Box<dyn System>,
    ) -> Host {
        let sys = match (root, env.get("INVAR_SYSFS").filter(|path| path.starts_with('/'))) {
            (None, Some(sysfs)) => PathBuf::from(sysfs),
            (root, _) => root.unwrap_or(Path::new("/")).join("sys"),
        };
        let nccl_files = add_nccl_files(root, &mut env);
        let root = Folder(root.unwrap_or(Path::new("/")).to_owned());
        let refused = remove_refused(&mut env);
        Host {
            sys: Folder(sys),
            proc: Folder(root.path("proc")),
            dev: Folder(root.path("dev")),
            root,
            env,
            refused,
            nccl_files,
            system,
        }
    }

    /// A variable that is set and not empty.
    pub(crate) fn var(&self, name: &str) -> Option<&str> {
        self.env.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// The command that removes a variable.
    pub(crate) fn unset(&self, name: &str) -> String {
        let has = |names: &[String]| names.iter().any(|of_file| of_file == name);
        match self.nccl_files.iter().find(|(_, names)| has(names)) {
            Some((file, _)) => format!("sed -i '/^{name}=/d' {}", file.display()),
            None => format!("unset {name}"),
        }
    }

    /// The settings, with the defaults for refused variables.
    pub(crate) fn params(&self) -> Params<'_> {
        Params::from_lookup(|name| self.env.get(name).map(String::as_str)).unwrap_or_default()
    }

    /// Whether this process seems to be in a container.
    pub(crate) fn is_container(&self) -> bool {
        self.root.has(".dockerenv")
            || self.root.has("run/.containerenv")
            || ["container", "APPTAINER_CONTAINER", "SINGULARITY_CONTAINER"]
                .iter()
                .any(|name| self.var(name).is_some())
            || self.is_kubernetes()
    }

    /// Whether this process seems to be in a pod of Kubernetes. A login over ssh has lost the pod's variables, but
    /// not its files.
    pub(crate) fn is_kubernetes(&self) -> bool {
        self.var("KUBERNETES_SERVICE_HOST").is_some()
            || self.root.has("var/run/secrets/kubernetes.io")
    }

    /// The interfaces; none if the kernel does not list them, which the check `interfaces` reports.
    pub(crate) fn interfaces(&self) -> Vec<Interface> {
        self.system.interfaces().unwrap_or_default()
    }

    /// The RDMA devices of the kernel, sorted by name.
    pub(crate) fn rdma_devices(&self) -> Vec<String> {
        self.sys.names("class/infiniband")
    }
}

/// Adds the variables of NCCL's files to an environment. NCCL reads first the file that `NCCL_CONF_FILE`
/// names, or `.nccl.conf` in the user's home, and then `/etc/nccl.conf`. A variable keeps its first value
/// (NCCL `param.cc initEnv`).
fn add_nccl_files(root: Option<&Path>, env: &mut BTreeMap<String, String>) -> NcclFiles {
    let var = |name: &str| env.get(name).filter(|value: &&String| !value.is_empty());
    // NCCL opens a relative path from where its process is, which is not known below another root.
    let absolute = |file: &String| match root {
        Some(_) => Path::new("/").join(file),
        None => std::path::absolute(file).unwrap_or(file.into()),
    };
    let root = Folder::new(root.unwrap_or(Path::new("/")));
    let named = var("NCCL_CONF_FILE").map(absolute);
    let of_user = named.or_else(|| Some(Path::new(var("HOME")?).join(".nccl.conf")));
    let files = of_user.into_iter().chain([PathBuf::from("/etc/nccl.conf")]);
    let mut found = Vec::new();
    for file in files {
        let text = root.known(&file.to_string_lossy()).unwrap_or_default();
        let mut names = Vec::new();
        for (name, value) in text.lines().filter_map(|line| line.split_once('=')) {
            if !name.starts_with('#') && !env.contains_key(name) {
                env.insert(name.to_owned(), value.to_owned());
                names.push(name.to_owned());
            }
        }
        if !names.is_empty() {
            found.push((file, names));
        }
    }
    found
}

/// Opens a file to read it. A FIFO in the place of a file does not make this wait.
pub(crate) fn open_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(NEVER_WAITS).open(path)
}

/// The system's own answers.
struct ThisHost;

impl System for ThisHost {
    fn interfaces(&self) -> io::Result<Vec<Interface>> {
        Interface::list()
    }

    fn hostname(&self) -> String {
        invar_linux::env::hostname()
    }

    fn resolve(&self, name: &str) -> Lookup {
        let (to_us, answer) = mpsc::channel();
        let name = name.to_owned();
        // The resolver cannot be interrupted. If it takes too long, its thread ends with the process.
        let asked = thread::Builder::new().spawn(move || {
            let found = invar_linux::interface::resolve(&name, Some(0));
            let _ = to_us.send(found.map(|addrs| addrs.iter().map(|addr| addr.ip()).collect()));
        });
        match asked.map(|_| answer.recv_timeout(RESOLVE_TIMEOUT)) {
            Ok(Ok(Ok(addresses))) => Lookup::Found(addresses),
            Ok(Ok(Err(error))) | Err(error) => Lookup::Failed(error.to_string()),
            Ok(Err(_)) => Lookup::TimedOut,
        }
    }

    fn memlock_limit_bytes(&self) -> Option<u64> {
        invar_verbs::memlock_limit_bytes()
    }

    fn libibverbs(&self) -> Libibverbs {
        match invar_verbs::device_names() {
            Ok(names) => Libibverbs::Lists(names),
            Err(invar_verbs::OpenError::Library(error)) => Libibverbs::Missing(error.to_string()),
            Err(error) => Libibverbs::Failed(error.to_string()),
        }
    }

    fn path_mtus(&self) -> BTreeMap<(String, u8), u32> {
        let listing = invar_verbs::list(&invar_verbs::Rules::default());
        let mtu = |port: invar_verbs::PortInfo| {
            ((port.device, port.attr.port_num), port.attr.active_mtu.bytes())
        };
        listing.ports.into_iter().map(mtu).collect()
    }

    fn has_relaxed_ordering(&self) -> bool {
        invar_verbs::has_relaxed_ordering()
    }

    fn takes_congestion(&self, name: &str) -> bool {
        Congestion::named(name).is_ok()
    }

    fn forces_buffers(&self) -> bool {
        let probe = socket(AddressFamily::INET, SocketType::DGRAM, None);
        probe.is_ok_and(|probe| {
            set_socket_recv_buffer_size_force(probe, invar_linux::udp::BUFFER_BYTES).is_ok()
        })
    }

    fn open(&self, path: &Path) -> io::Result<()> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).custom_flags(NEVER_WAITS).open(path).map(drop)
    }

    fn packet_filter(&self) -> Result<String, String> {
        await_children().map_err(|failure| failure.to_string())?;
        let start = |nft: &&str| {
            let mut command = Command::new(nft);
            command.args(["-j", "list", "ruleset"]).stdin(Stdio::null());
            let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
            (!child.as_ref().is_err_and(|error| error.kind() == ErrorKind::NotFound))
                .then_some(child)
        };
        let child = NFT.iter().find_map(start).ok_or("there is no nft here")?;
        let mut child = child.map_err(|error| format!("nft: {error}"))?;
        let (to_us, read) = mpsc::channel();
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let reader = thread::Builder::new().spawn(move || {
            let mut texts = [String::new(), String::new()];
            let lengths = [
                stdout.map(|pipe| pipe.take(FILTER_BYTES_MAX).read_to_string(&mut texts[0])),
                stderr.map(|pipe| pipe.take(TEXT_BYTES_MAX).read_to_string(&mut texts[1])),
            ];
            let read = lengths.into_iter().flatten().collect::<io::Result<Vec<usize>>>();
            let _ = to_us.send(read.map(|_| texts));
        });
        let read = reader.map(|_| read.recv_timeout(NFT_TIMEOUT));
        // It has closed its output, or is too late.
        let _ = child.kill();
        let ended = child.wait();
        match (read, ended) {
            (Ok(Ok(Ok([rules, errors]))), Ok(status)) => match errors.lines().next() {
                Some(error) if !status.success() => Err(format!("nft: {error}")),
                _ => Ok(rules),
            },
            (Ok(Ok(Err(error))) | Err(error), _) | (_, Err(error)) => Err(format!("nft: {error}")),
            (Ok(Err(_)), _) => Err(format!("nft took more than {} s", NFT_TIMEOUT.as_secs())),
        }
    }
}
