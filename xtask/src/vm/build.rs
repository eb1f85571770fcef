//! Builds the guest's kernel, its programs, and a snapshot of both running.

use std::fs::{self, File, Permissions};
use std::io::{BufRead, BufReader, ErrorKind};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::image::Image;
use super::machine::{Machine, QEMU, Start, Wiring};
use crate::shell::Shell;

const INIT: &str = include_str!("../../vm/init");
const MACHINE: &str = include_str!("machine.rs");

/// Names of Debian's packages, whose dependencies are installed with them. A name with a minus is left
/// out.
const PACKAGES: &str = "linux-image-amd64 initramfs-tools- busybox-static kmod bash iproute2 \
                        ibverbs-providers ibverbs-utils perftest tcpdump";

/// The modules that `init` loads and their dependencies, with the ciphers and checksums that they
/// request by name. Each entry is the beginning of a path below the modules' directory.
const MODULES: [&str; 19] = [
    "arch/x86/crypto/",
    "crypto/",
    "drivers/char/virtio_console.ko",
    "drivers/infiniband/core/",
    "drivers/infiniband/sw/rxe/",
    "drivers/net/net_failover.ko",
    "drivers/net/veth.ko",
    "drivers/net/virtio_net.ko",
    "drivers/virtio/",
    "fs/9p/",
    "fs/configfs/",
    "fs/fscache/",
    "fs/netfs/",
    "lib/",
    "net/9p/",
    "net/core/",
    "net/ipv4/",
    "net/ipv6/",
    "net/sched/",
];
/// Directories that no program in the guest reads.
const UNUSED: [&str; 5] = [
    "boot",
    "usr/share/doc",
    "usr/share/locale",
    "usr/share/man",
    "usr/lib/x86_64-linux-gnu/gconv",
];

/// The time limit for a boot under emulation on a busy host.
const BOOT_LIMIT: Duration = Duration::from_secs(300);

impl Image {
    /// Returns the image below `target_dir`. Builds it if it is missing or if its recipe has changed.
    pub(super) fn ensure(shell: &Shell, target_dir: &Path, rebuild: bool) -> Result<Image> {
        let base = target_dir.join("vm");
        fs::create_dir_all(&base).with_context(|| base.display().to_string())?;
        let lock = File::create(base.join("lock"))?;
        let directory = base.join("image");
        let recipe = recipe(shell)?;
        let is_current =
            || fs::read_to_string(directory.join("recipe")).is_ok_and(|text| text == recipe);
        lock.lock_shared()?;
        if rebuild || !is_current() {
            lock.lock()?;
            // Check again, because another process may have built the image before this one got the
            // lock.
            if rebuild || !is_current() {
                let new = Image::new(base.join("new"), lock.try_clone()?);
                new.build(shell).context("cannot build the guest's image")?;
                fs::write(new.directory.join("recipe"), &recipe)?;
                remove(&directory)?;
                fs::rename(&new.directory, &directory)?;
            }
            lock.lock_shared()?;
        }
        Ok(Image::new(directory, lock))
    }

    fn build(&self, shell: &Shell) -> Result<()> {
        remove(&self.directory)?;
        let [apt, root] = ["apt", "root"].map(|name| self.directory.join(name));
        eprintln!("vm: downloading Debian's packages");
        let packages = download(shell, &apt)?;
        eprintln!("vm: unpacking {} packages", packages.len());
        unpack(shell, &packages, &root)?;
        let kernel = only_entry(&root.join("boot"), "vmlinuz-")?;
        fs::rename(kernel, self.kernel())?;
        prune(&root)?;
        fs::write(root.join("init"), INIT)?;
        fs::set_permissions(root.join("init"), Permissions::from_mode(0o755))?;
        // Pack with the guest's own busybox, which is linked statically.
        let mut pack = shell.command("sh -c");
        pack.arg("find . | bin/busybox cpio -o -H newc >../initramfs").current_dir(&root);
        shell.run(pack)?;
        eprintln!("vm: booting it, for a snapshot");
        self.snapshot()?;
        remove(&apt)?;
        remove(&root)
    }

    /// Boots the guest, and saves the machine when its devices exist.
    fn snapshot(&self) -> Result<()> {
        let wiring = Wiring { shares: [&self.directory; 2], host_up: None };
        let mut machine = Machine::start(self, Start::Boot, &wiring)?;
        machine.control.set_read_timeout(Some(BOOT_LIMIT))?;
        let mut line = String::new();
        let read = BufReader::new(&machine.control).read_line(&mut line);
        if read.is_err() || line != "ready\n" {
            bail!(machine.failure("the guest does not boot"));
        }
        machine.freeze(self)
    }
}

/// Describes what an image is made of. A snapshot fits only the machine that it was taken of. Debian's
/// versions are left out, because they change every day.
fn recipe(shell: &Shell) -> Result<String> {
    let qemu = shell.read(shell.command(&format!("{QEMU} --version")))?;
    Ok(format!("{qemu}{PACKAGES}\n{MODULES:?}\n{MACHINE}\n{INIT}"))
}

/// Downloads [`PACKAGES`] with all that they need on an empty system. apt keeps its state below `apt`
/// and uses the host's sources. The host's installed packages make no difference.
fn download(shell: &Shell, apt: &Path) -> Result<Vec<PathBuf>> {
    let archives = apt.join("archives");
    for directory in [apt.join("lists/partial"), archives.join("partial")] {
        fs::create_dir_all(directory)?;
    }
    for action in
        ["update", &format!("install --yes --download-only --no-install-recommends {PACKAGES}")]
    {
        let mut command = shell.command("apt-get -qq");
        let options = [
            "Dir::State::status=/dev/null",
            &format!("Dir::State={}", apt.display()),
            &format!("Dir::Cache={}", apt.display()),
            "APT::Sandbox::User=root",
            "Acquire::Languages=none",
            "Debug::NoLocking=true",
        ];
        for option in options {
            command.args(["-o", option]);
        }
        command.args(action.split_whitespace());
        shell.run(command)?;
    }
    let packages = entries(&archives)?;
    Ok(packages.into_iter().filter(|path| path.extension().is_some_and(|e| e == "deb")).collect())
}

fn unpack(shell: &Shell, packages: &[PathBuf], root: &Path) -> Result<()> {
    for package in packages {
        let mut command = shell.command("dpkg-deb --extract");
        command.args([package, root]);
        shell.run(command)?;
    }
    // Debian has merged these directories into `usr`, and no package brings the old names.
    for name in ["bin", "sbin", "lib", "lib64"] {
        if !root.join(name).exists() {
            symlink(Path::new("usr").join(name), root.join(name))?;
        }
    }
    Ok(())
}

/// Removes files that would only take memory.
fn prune(root: &Path) -> Result<()> {
    for unused in UNUSED {
        remove(&root.join(unused))?;
    }
    let kernel = only_entry(&root.join("lib/modules"), "")?.join("kernel");
    let mut directories = vec![kernel.clone()];
    while let Some(directory) = directories.pop() {
        for path in entries(&directory)? {
            let name = path.strip_prefix(&kernel)?.to_string_lossy();
            if path.is_dir() {
                directories.push(path);
            } else if !MODULES.iter().any(|module| name.starts_with(module)) {
                fs::remove_file(&path)?;
            }
        }
    }
    Ok(())
}

fn entries(directory: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(directory).with_context(|| directory.display().to_string())?;
    entries.map(|entry| Ok(entry?.path())).collect()
}

/// The one entry of `directory` whose name begins with `prefix`. Fails if there is not exactly one.
fn only_entry(directory: &Path, prefix: &str) -> Result<PathBuf> {
    let begins = |path: &PathBuf| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix))
    };
    let mut found = entries(directory)?.into_iter().filter(begins);
    match (found.next(), found.next()) {
        (Some(path), None) => Ok(path),
        _ => bail!("{} holds not just one {prefix}*", directory.display()),
    }
}

/// Removes a directory if it exists.
fn remove(directory: &Path) -> Result<()> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| directory.display().to_string())
        }
        _ => Ok(()),
    }
}
