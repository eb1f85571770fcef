//! A Slurm of two nodes on this machine.
//!
//! Each node is a network namespace with a host name, an `/etc/hosts` and a `slurmd` of its own. The first
//! also runs `slurmctld`. A `munged` with its own key serves both. Everything ends with [`Slurm`].

use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use invar_linux::random::random;
use tempfile::TempDir;

use super::is_installed;
use crate::shell::Shell;

const PROGRAMS: [&str; 6] = ["munged", "slurmctld", "slurmd", "srun", "ip", "unshare"];
/// Time in which both nodes must be ready.
const READY_WITHIN: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(200);
const NODES: [u8; 2] = [1, 2];

/// The daemons and namespaces. Dropping this value ends them.
pub(super) struct Slurm {
    directory: TempDir,
    /// The daemons in the order in which they started.
    daemons: Vec<Child>,
    namespaces: Vec<String>,
}

impl Slurm {
    /// Starts the daemons, and waits until both nodes are idle.
    pub(super) fn start(shell: &Shell, parent: &Path) -> Result<Slurm> {
        for program in PROGRAMS {
            ensure!(is_installed(program), "{program} is missing");
        }
        ensure!(rustix::process::geteuid().is_root(), "namespaces need root");
        // The path of a socket may have about 100 bytes.
        // munged refuses a socket that others cannot reach.
        let all = Permissions::from_mode(0o755);
        let directory = tempfile::Builder::new().permissions(all).tempdir()?;
        let mut slurm = Slurm { directory, daemons: Vec::new(), namespaces: Vec::new() };
        slurm.write_files()?;
        slurm.make_network(shell)?;
        let log = |name: &str| {
            let path = parent.join(format!("{name}.log"));
            File::create(&path).with_context(|| path.display().to_string())
        };
        let munged = slurm.munged(shell);
        slurm.daemon(munged, log("munged")?)?;
        let key = slurm.directory.path().join("munge/socket");
        wait("munged", || Ok(key.exists()))?;
        let controller = slurm.on(shell, 1, "slurmctld -D");
        slurm.daemon(controller, log("slurmctld")?)?;
        for node in NODES {
            let daemon = slurm.on(shell, node, &format!("slurmd -D -N {}", name(node)));
            slurm.daemon(daemon, log(&format!("slurmd-{node}"))?)?;
        }
        wait("two idle nodes", || {
            let states = slurm.command(shell, "sinfo --noheader --format=%D%t").output()?;
            Ok(String::from_utf8_lossy(&states.stdout).trim() == "2idle")
        })
        .with_context(|| format!("see the logs in {}", parent.display()))?;
        Ok(slurm)
    }

    /// A command on the first node.
    pub(super) fn command(&self, shell: &Shell, line: &str) -> Command {
        self.on(shell, NODES[0], line)
    }

    /// Whether a process of this kind of MPI starts.
    pub(super) fn has_mpi(&self, shell: &Shell, mpi: &str) -> Result<bool> {
        let mut command = self.command(shell, &format!("srun --mpi={mpi} -n 1 true"));
        Ok(command.stdin(Stdio::null()).output()?.status.success())
    }

    fn write_files(&self) -> Result<()> {
        let root = self.directory.path();
        for name in
            ["munge", "state", "cgroup"].map(str::to_owned).into_iter().chain(NODES.map(spool))
        {
            fs::create_dir_all(root.join(&name)).with_context(|| name.clone())?;
        }
        let key = root.join("munge/key");
        fs::write(&key, random::<128>()?)?;
        fs::set_permissions(&key, Permissions::from_mode(0o400))?;
        // munged refuses a folder that others can write to.
        fs::set_permissions(root.join("munge"), Permissions::from_mode(0o711))?;
        let hosts: String =
            NODES.iter().map(|node| format!("{} {}\n", address(*node), name(*node))).collect();
        fs::write(root.join("hosts"), format!("127.0.0.1 localhost\n{hosts}"))?;
        let root = root.display();
        fs::write(
            self.directory.path().join("cgroup.conf"),
            format!("CgroupPlugin=cgroup/v1\nCgroupMountpoint={root}/cgroup\nCgroupAutomount=no\n"),
        )?;
        // The plugin for PMIx makes a folder in `TmpFS`, and fails if the other node has made this folder before.
        let text = format!(
            "ClusterName=invar\nSlurmctldHost={controller}\nAuthType=auth/munge\n\
             AuthInfo=socket={root}/munge/socket\nCredType=cred/munge\nSlurmUser=root\n\
             SlurmdUser=root\nStateSaveLocation={root}/state\nSlurmdSpoolDir={root}/spool-%n\n\
             TmpFS={root}/spool-%n\n\
             SlurmctldPidFile={root}/slurmctld.pid\nSlurmdPidFile={root}/slurmd-%n.pid\n\
             ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nSelectType=select/linear\n\
             SlurmdParameters=config_overrides\nReturnToService=2\nMpiDefault=none\n\
             JobAcctGatherType=jobacct_gather/none\nNodeName={nodes} CPUs=2 State=UNKNOWN\n\
             PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES\n",
            controller = name(NODES[0]),
            nodes = NODES.map(name).join(","),
        );
        fs::write(self.directory.path().join("slurm.conf"), text)?;
        Ok(())
    }

    /// Two namespaces with a link between them.
    fn make_network(&mut self, shell: &Shell) -> Result<()> {
        for node in NODES {
            let namespace = format!("invar-{}-{node}", std::process::id());
            shell.run(shell.command(&format!("ip netns add {namespace}")))?;
            self.namespaces.push(namespace);
        }
        let [first, second] = [&self.namespaces[0], &self.namespaces[1]];
        let pair = format!("ip link add node1 netns {first} type veth peer node2 netns {second}");
        shell.run(shell.command(&pair))?;
        for (node, namespace) in NODES.iter().zip(&self.namespaces) {
            for what in [
                format!("addr add {}/24 dev node{node}", address(*node)),
                format!("link set node{node} up"),
                "link set lo up".to_owned(),
            ] {
                shell.run(shell.command(&format!("ip -n {namespace} {what}")))?;
            }
        }
        Ok(())
    }

    fn munged(&self, shell: &Shell) -> Command {
        let root = self.directory.path().join("munge");
        let mut command = shell.command("munged --foreground --force");
        for (flag, file) in [
            ("--key-file", "key"),
            ("--socket", "socket"),
            ("--pid-file", "pid"),
            ("--log-file", "log"),
            ("--seed-file", "seed"),
        ] {
            command.arg(format!("{flag}={}", root.join(file).display()));
        }
        command.env("PATH", path_of_daemons());
        command
    }

    /// A command on a node, from the program's name and its arguments. More arguments may follow.
    fn on(&self, shell: &Shell, node: u8, line: &str) -> Command {
        const ENTER: &str = "hostname \"$1\"; mount --bind \"$2\" /etc/hosts; shift 2; exec \"$@\"";
        let mut command = shell.command("ip netns exec");
        command.arg(&self.namespaces[usize::from(node) - 1]);
        command.args(["unshare", "--uts", "--mount", "bash", "-ec", ENTER, "node", &name(node)]);
        command.arg(self.directory.path().join("hosts")).args(line.split_whitespace());
        command.env("SLURM_CONF", self.directory.path().join("slurm.conf"));
        command.env("PATH", path_of_daemons());
        command
    }

    fn daemon(&mut self, mut command: Command, log: File) -> Result<()> {
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        self.daemons.push(command.spawn().context("a daemon")?);
        Ok(())
    }
}

impl Drop for Slurm {
    fn drop(&mut self) {
        for daemon in self.daemons.iter_mut().rev() {
            // The daemons end their children on this signal. It fails only for one that has ended.
            let pid = rustix::process::Pid::from_child(daemon);
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
            let _ = daemon.wait();
        }
        for namespace in &self.namespaces {
            let _ = Command::new("ip").args(["netns", "delete", namespace]).status();
        }
    }
}

fn name(node: u8) -> String {
    format!("node{node}")
}

fn address(node: u8) -> String {
    format!("10.77.9.{node}")
}

fn spool(node: u8) -> String {
    format!("spool-{}", name(node))
}

/// Daemons are in a folder that a user's `PATH` may lack.
fn path_of_daemons() -> String {
    format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default())
}

/// Waits until something is so.
fn wait(what: &str, mut is_so: impl FnMut() -> Result<bool>) -> Result<()> {
    let start = Instant::now();
    while !is_so()? {
        if start.elapsed() > READY_WITHIN {
            bail!("no {what} within {READY_WITHIN:?}");
        }
        thread::sleep(LOOK_EVERY);
    }
    Ok(())
}
