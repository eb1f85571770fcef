//! One QEMU process, and the channels to what runs in it.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::image::Image;

/// The emulator.
pub(super) const QEMU: &str = "qemu-system-x86_64";
/// Enough for two processes with some hundred megabytes each; only what is touched is taken.
const MEMORY_MIB: u32 = 2048;
/// How long QEMU may take to open a channel, or to end once its guest has.
const PATIENCE: Duration = Duration::from_secs(20);
const NAP: Duration = Duration::from_millis(5);
/// The clock is QEMU's, which nobody else disturbs; and there is nothing to hide from.
const KERNEL_OPTIONS: &str = "console=ttyS0 quiet panic=-1 reboot=t tsc=reliable no_timer_check \
                              mitigations=off random.trust_cpu=on net.ifnames=0";
/// Of QEMU and of the guest's kernel; told when something goes wrong.
const LOGS: [&str; 2] = ["qemu.log", "console.log"];
const LOG_BYTES_MAX: usize = 4000;

/// The guest's memory is a file of the image, and no part of what QEMU writes or reads.
const WITHOUT_MEMORY: &str = "migrate_set_capability x-ignore-shared on";

/// How a guest comes to life.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Start {
    /// From its kernel. Its memory becomes the image's.
    Boot,
    /// From the image's snapshot, in a copy of its memory, once the monitor is told to.
    Resume,
}

/// What a guest is connected to.
pub(super) struct Wiring<'a> {
    /// Directories that the guest can mount, under the tags `root` and `target`.
    pub(super) shares: [&'a Path; 2],
    /// The script that sets up the host's end of the guest's network interface, which then is a
    /// TAP device in a network namespace of its own. Without one, packets go nowhere.
    pub(super) host_up: Option<&'a Path>,
}

/// A running QEMU; killed when this is dropped, or when the process that started it dies.
pub(super) struct Machine {
    qemu: Qemu,
    /// Takes QEMU's own commands.
    monitor: UnixStream,
    /// Between us and `xtask/vm/init`, which knows this and the next two as ports 1, 2 and 3.
    pub(super) control: UnixStream,
    /// What the guest's command writes to standard output.
    pub(super) output: UnixStream,
    /// And to standard error.
    pub(super) errors: UnixStream,
}

/// In the order in which QEMU opens them, waiting for us each time.
const CHANNELS: [&str; 4] = ["monitor", "control", "output", "errors"];

impl Machine {
    /// Starts QEMU, and connects with all of its channels.
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

    /// Lets the guest go on from the image's snapshot.
    pub(super) fn resume(&mut self, image: &Image) -> Result<()> {
        let state = image.state();
        writeln!(self.monitor, "{WITHOUT_MEMORY}")?;
        writeln!(self.monitor, "migrate_incoming \"exec:cat '{}'\"", state.display())?;
        Ok(())
    }

    /// Keeps the guest as it is in the image, and ends. Its memory is there already.
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

    /// A path that leads to the network namespace of a machine with a `host_up`.
    pub(super) fn network_namespace(&self) -> PathBuf {
        format!("/proc/{}/ns/net", self.qemu.child.id()).into()
    }

    /// Waits for QEMU to end by itself.
    pub(super) fn wait(&mut self) -> Result<()> {
        let end = Instant::now() + PATIENCE;
        while !self.qemu.has_ended()? {
            ensure!(Instant::now() < end, self.failure("QEMU does not end"));
            thread::sleep(NAP);
        }
        Ok(())
    }

    /// `what` went wrong, and what QEMU and the guest's kernel said before.
    pub(super) fn failure(&self, what: &str) -> String {
        self.qemu.failure(what)
    }
}

/// The process, and where its sockets and logs are.
struct Qemu {
    child: Child,
    scratch: PathBuf,
}

impl Qemu {
    fn start(image: &Image, start: Start, wiring: &Wiring<'_>) -> Result<Qemu> {
        // Not below the build directory, whose path may be longer than a socket's can be.
        let scratch = std::env::temp_dir().join(format!("invar-vm-{}", std::process::id()));
        fs::create_dir(&scratch).with_context(|| scratch.display().to_string())?;
        let log = File::create(scratch.join(LOGS[0]))?;
        // Both replace themselves by what they are to start, so that the child is QEMU.
        let mut command = Command::new("setpriv");
        if wiring.host_up.is_some() {
            command = Command::new("unshare");
            command.args(["--net", "setpriv"]);
        }
        command.args(["--pdeathsig", "KILL", QEMU]);
        command.args(arguments(image, start, wiring, &scratch));
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let child = command
            .spawn()
            .with_context(|| format!("cannot start {}", command.get_program().display()))?;
        Ok(Qemu { child, scratch })
    }

    fn connect(&mut self, channel: &str) -> Result<UnixStream> {
        let path = self.scratch.join(channel);
        let end = Instant::now() + PATIENCE;
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
            let log = fs::read(self.scratch.join(name)).unwrap_or_default();
            let tail = &log[log.len().saturating_sub(LOG_BYTES_MAX)..];
            format!("{text}\n{}", String::from_utf8_lossy(tail).trim())
        })
    }
}

impl Drop for Qemu {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.scratch);
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
