//! One QEMU process, and the channels to the programs in its guest.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use invar_testkit::child::Killed;
use tempfile::TempDir;

use super::image::Image;

/// The emulator.
pub(super) const QEMU: &str = "qemu-system-x86_64";
/// The guest's memory. It has room for two processes with some hundred megabytes each. The host takes
/// only the touched pages.
const MEMORY_MIB: u32 = 2048;
/// The time in which QEMU must open a channel, or end after its guest has ended.
const TIMEOUT: Duration = Duration::from_secs(20);
const NAP: Duration = Duration::from_millis(5);
/// The kernel may rely on the clock, which is QEMU's own. It needs no mitigations, because the guest
/// hides nothing.
const KERNEL_OPTIONS: &str = "console=ttyS0 quiet panic=-1 reboot=t tsc=reliable no_timer_check \
                              mitigations=off random.trust_cpu=on net.ifnames=0";
/// The logs of QEMU and of the guest's kernel. An error shows both.
const LOGS: [&str; 2] = ["qemu.log", "console.log"];
const LOG_BYTES_MAX: usize = 4000;

/// QEMU leaves the guest's memory out of the state that it writes and reads, because the memory is a
/// file of the image.
const WITHOUT_MEMORY: &str = "migrate_set_capability x-ignore-shared on";

/// The way in which a guest starts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Start {
    /// The guest boots its kernel. Its memory becomes the image's.
    Boot,
    /// The guest continues from the image's snapshot, in a copy of the memory, after a monitor command.
    Resume,
}

/// The connections between a guest and the host.
pub(super) struct Wiring<'a> {
    /// Directories that the guest can mount, under the tags `root` and `target`.
    pub(super) shares: [&'a Path; 2],
    /// The script that sets up the host's end of the guest's network interface. That end is a TAP device
    /// in a network namespace of its own. Without a script, packets go nowhere.
    pub(super) host_up: Option<&'a Path>,
}

/// A running QEMU. It is killed when this value is dropped, or when the process that started it dies.
pub(super) struct Machine {
    qemu: Qemu,
    /// Takes commands for QEMU itself.
    monitor: UnixStream,
    /// The channel to `xtask/vm/init`, which knows this channel and the next two as ports 1, 2 and 3.
    pub(super) control: UnixStream,
    /// The standard output of the guest's command.
    pub(super) output: UnixStream,
    /// The standard error of the guest's command.
    pub(super) errors: UnixStream,
}

/// The channels in the order in which QEMU opens them. QEMU waits for a connection to each.
const CHANNELS: [&str; 4] = ["monitor", "control", "output", "errors"];

impl Machine {
    /// Starts QEMU and connects to all its channels.
    pub(super) fn start(image: &Image, start: Start, wiring: &Wiring<'_>) -> Result<Machine> {
        let mut qemu = Qemu::start(image, start, wiring)?;
        let mut streams = Vec::new();
        for channel in CHANNELS {
            streams.push(qemu.connect(channel)?);
        }
        let streams = <[UnixStream; CHANNELS.len()]>::try_from(streams);
        let [monitor, control, output, errors] = streams.expect("one for each channel");
        Ok(Machine { qemu, monitor, control, output, errors })
    }

    /// Continues the guest from the image's snapshot.
    pub(super) fn resume(&mut self, image: &Image) -> Result<()> {
        let state = image.state();
        writeln!(self.monitor, "{WITHOUT_MEMORY}")?;
        writeln!(self.monitor, "migrate_incoming \"exec:cat '{}'\"", state.display())?;
        Ok(())
    }

    /// Saves the guest's state in the image, which has its memory already, and ends QEMU.
    pub(super) fn freeze(&mut self, image: &Image) -> Result<()> {
        let state = image.state();
        writeln!(self.monitor, "{WITHOUT_MEMORY}")?;
        writeln!(self.monitor, "migrate \"exec:cat >'{}'\"", state.display())?;
        writeln!(self.monitor, "quit")?;
        self.wait()?;
        let kept = fs::metadata(&state).is_ok_and(|state| state.len() > 0);
        ensure!(kept, self.failure("no snapshot"));
        Ok(())
    }

    /// The path of the network namespace of a machine with a `host_up`.
    pub(super) fn network_namespace(&self) -> PathBuf {
        format!("/proc/{}/ns/net", self.qemu.child.id()).into()
    }

    /// Waits for QEMU to end by itself.
    pub(super) fn wait(&mut self) -> Result<()> {
        let end = Instant::now() + TIMEOUT;
        while !self.qemu.has_ended()? {
            ensure!(Instant::now() < end, self.failure("QEMU does not end"));
            thread::sleep(NAP);
        }
        Ok(())
    }

    /// An error text: `what` failed, and the logs of QEMU and of the guest's kernel.
    pub(super) fn failure(&self, what: &str) -> String {
        self.qemu.failure(what)
    }
}

/// The process, and the folder with its sockets and logs.
struct Qemu {
    child: Killed,
    scratch: TempDir,
}

impl Qemu {
    fn start(image: &Image, start: Start, wiring: &Wiring<'_>) -> Result<Qemu> {
        // The build directory's path may be too long for a socket, so the folder is elsewhere.
        let scratch = tempfile::tempdir()?;
        let log = File::create(scratch.path().join(LOGS[0]))?;
        // Both programs replace themselves by the next program, so the child is QEMU.
        let mut command = Command::new("setpriv");
        if wiring.host_up.is_some() {
            command = Command::new("unshare");
            command.args(["--net", "setpriv"]);
        }
        command.args(["--pdeathsig", "KILL", QEMU]);
        command.args(arguments(image, start, wiring, scratch.path()));
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let child = command
            .spawn()
            .with_context(|| format!("cannot start {}", command.get_program().display()))?;
        Ok(Qemu { child: Killed(child), scratch })
    }

    fn connect(&mut self, channel: &str) -> Result<UnixStream> {
        let path = self.scratch.path().join(channel);
        let end = Instant::now() + TIMEOUT;
        loop {
            match UnixStream::connect(&path) {
                Ok(stream) => return Ok(stream),
                Err(error) if self.has_ended()? || Instant::now() > end => {
                    return Err(error).with_context(|| self.failure("QEMU does not start"));
                }
                Err(_) => thread::sleep(NAP),
            }
        }
    }

    fn has_ended(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_some())
    }

    fn failure(&self, what: &str) -> String {
        LOGS.iter().fold(what.to_owned(), |text, name| {
            let log = fs::read(self.scratch.path().join(name)).unwrap_or_default();
            let tail = &log[log.len().saturating_sub(LOG_BYTES_MAX)..];
            format!("{text}\n{}", String::from_utf8_lossy(tail).trim())
        })
    }
}

fn arguments(image: &Image, start: Start, wiring: &Wiring<'_>, scratch: &Path) -> Vec<String> {
    let mut arguments = Vec::new();
    let mut add = |option: &str, value: String| arguments.extend([option.to_owned(), value]);
    let share = if start == Start::Boot { "on" } else { "off" };
    let ram = quoted(&image.ram());
    add("-machine", "pc,usb=off,vmport=off,hpet=off,memory-backend=ram".to_owned());
    add("-accel", "tcg,thread=multi".to_owned());
    add("-cpu", "max".to_owned());
    add("-smp", "2".to_owned());
    add("-m", MEMORY_MIB.to_string());
    add(
        "-object",
        format!("memory-backend-file,id=ram,size={MEMORY_MIB}M,mem-path={ram},share={share}"),
    );
    add("-kernel", image.kernel().display().to_string());
    add("-initrd", image.initramfs().display().to_string());
    add("-append", KERNEL_OPTIONS.to_owned());
    add("-device", "virtio-serial-pci".to_owned());
    add("-serial", format!("file:{}", scratch.join(LOGS[1]).display()));
    for (number, channel) in CHANNELS.iter().enumerate() {
        let path = quoted(&scratch.join(channel));
        add("-chardev", format!("socket,id={channel},path={path},server=on,wait=on"));
        match number {
            0 => add("-mon", format!("chardev={channel},mode=readline")),
            _ => add("-device", format!("virtserialport,chardev={channel},nr={number}")),
        }
    }
    for (tag, path) in ["root", "target"].iter().zip(wiring.shares) {
        let path = quoted(path);
        add("-fsdev", format!("local,id={tag},path={path},security_model=none,multidevs=remap"));
        add("-device", format!("virtio-9p-pci,fsdev={tag},mount_tag={tag}"));
    }
    // Nobody is at the other end of the datagram socket: what is sent there is lost.
    let [here, nowhere] = ["here", "nowhere"].map(|name| quoted(&scratch.join(name)));
    add(
        "-netdev",
        match wiring.host_up {
            Some(script) => {
                let script = quoted(script);
                format!("tap,id=net,ifname=invar0,script={script},downscript=no,vnet_hdr=off")
            }
            None => format!(
                "dgram,id=net,local.type=unix,local.path={here},\
                 remote.type=unix,remote.path={nowhere}"
            ),
        },
    );
    add("-device", "virtio-net-pci,netdev=net,mac=02:00:00:00:0b:02,romfile=".to_owned());
    if start == Start::Resume {
        add("-incoming", "defer".to_owned());
    }
    let flags = ["-nodefaults", "-no-user-config", "-nographic", "-no-reboot"];
    arguments.extend(flags.map(str::to_owned));
    arguments
}

/// A path as the value of one of several options that commas separate.
fn quoted(path: &Path) -> String {
    path.display().to_string().replace(',', ",,")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comma_in_a_path_does_not_end_the_option_that_it_stands_in() {
        assert_eq!(quoted(Path::new("/tmp/a,b")), "/tmp/a,,b");
    }
}
