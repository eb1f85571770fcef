//! PCI devices as the kernel's files show them.

use std::io::Read;
use std::path::{Path, PathBuf};

use super::host::{Host, open_file};

const NVIDIA: &str = "0x10de";
/// The PCI classes of GPUs: those with a screen, and those without.
const GPU_CLASSES: [&str; 2] = ["0x0300", "0x0302"];

/// The bytes of a device's configuration, with PCIe's extended part.
const CONFIG_BYTES: usize = 4096;
/// The bytes before PCIe's extended part. An unprivileged process sees no more.
const PLAIN_BYTES: usize = 256;
/// Access Control Services (PCIe §7.7.8).
const ACS: u16 = 0x000d;
/// The offset of ACS' control register.
const ACS_CONTROL: usize = 6;
/// P2P Request Redirect and P2P Completion Redirect.
const ACS_REDIRECTS: u16 = 0b1100;

/// The addresses of NVIDIA's GPUs.
pub(crate) fn nvidia_gpus(host: &Host) -> Vec<String> {
    let is_gpu = |address: &String| {
        let text = |file: &str| host.sys.known(&format!("bus/pci/devices/{address}/{file}"));
        text("vendor").as_deref() == Some(NVIDIA)
            && text("class").is_some_and(|class| GPU_CLASSES.iter().any(|c| class.starts_with(c)))
    };
    host.sys.names("bus/pci/devices").into_iter().filter(is_gpu).collect()
}

/// The folders of the ports of PCIe switches between a device and its root port. `link` is a path below
/// `/sys`. Transfers between devices of one switch do not reach the root port, and others always do.
pub(crate) fn switch_ports(host: &Host, link: &str) -> Vec<PathBuf> {
    let Ok(directory) = host.sys.path(link).canonicalize() else { return Vec::new() };
    let is_device = |path: &&Path| {
        // A PCI address, as 0000:3b:00.0. The root complex is pci0000:3a.
        let name = path.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
        name.matches(':').count() == 2 && name.contains('.')
    };
    let ports = directory.ancestors().skip(1).take_while(is_device).map(Path::to_owned);
    let mut ports: Vec<PathBuf> = ports.collect();
    ports.pop();
    ports
}

/// Whether a switch's port redirects transfers between the devices of the switch to the CPU. Returns `None` if this
/// process may not see that.
pub(crate) fn redirects(bridge: &Path) -> Option<bool> {
    let mut config = Vec::new();
    let file = open_file(&bridge.join("config")).ok()?;
    file.take(CONFIG_BYTES as u64).read_to_end(&mut config).ok()?;
    acs_redirects(&config)
}

/// Looks for ACS in a configuration.
fn acs_redirects(config: &[u8]) -> Option<bool> {
    if config.len() <= PLAIN_BYTES {
        return None;
    }
    let word = |at: usize| Some(u16::from_le_bytes(config.get(at..at + 2)?.try_into().ok()?));
    let mut at = PLAIN_BYTES;
    // A list that never ends must not keep us here.
    for _ in 0..CONFIG_BYTES / 8 {
        let Some((id, next)) = word(at).zip(word(at + 2)) else { break };
        if id == ACS {
            return word(at + ACS_CONTROL).map(|control| control & ACS_REDIRECTS != 0);
        }
        at = usize::from(next >> 4);
        if at < PLAIN_BYTES {
            break;
        }
    }
    Some(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A configuration with two extended capabilities, the second at 0x140.
    fn config(id: u16, control: u16, next: u16) -> Vec<u8> {
        let mut bytes = vec![0; CONFIG_BYTES];
        bytes[0x100..0x104].copy_from_slice(&[1, 0, 0x01, 0x14]);
        bytes[0x140..0x142].copy_from_slice(&id.to_le_bytes());
        bytes[0x142..0x144].copy_from_slice(&((next << 4) | 1).to_le_bytes());
        bytes[0x146..0x148].copy_from_slice(&control.to_le_bytes());
        bytes
    }

    #[test]
    fn redirection_is_found_in_the_list_of_capabilities() {
        assert_eq!(acs_redirects(&config(ACS, 0x1d, 0)), Some(true));
        assert_eq!(acs_redirects(&config(ACS, 0x11, 0)), Some(false));
        assert_eq!(acs_redirects(&config(0x0b, 0x1d, 0)), Some(false));
        // The list runs in a circle.
        assert_eq!(acs_redirects(&config(0x0b, 0x1d, 0x100)), Some(false));
        // An unprivileged process sees the first 64 bytes.
        assert_eq!(acs_redirects(&[0; 64]), None);
        assert_eq!(acs_redirects(&config(ACS, 0x1d, 0)[..0x145]), None);
    }
}
