//! `invar devices`: lists the devices of this host.

use std::io;
use std::process::ExitCode;

use invar::cuda::GpuInfo;
use invar::{Device, DeviceInfo, DeviceKind, GpuPath, LinkLayer, Settings};
use serde::Serialize;

use crate::failure::Failure;
use crate::logger::tell;
use crate::output::{pretty_json, print};

/// List the devices of this host.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Print JSON: an array with an object for each device
    #[arg(long)]
    json: bool,
}

/// The JSON of a device.
#[derive(Serialize)]
struct Shown {
    name: String,
    kind: String,
    netdev: String,
    address: String,
    gid: String,
    gid_index: u8,
    /// The reason why this GID of the port's table was chosen.
    gid_why: String,
    link_layer: &'static str,
    /// Payload bytes of a packet between two such devices, as in `invar perf`; `null` over TCP.
    mtu: Option<usize>,
    /// The largest path MTU of the verbs, which holds for a peer other than Invar.
    path_mtu: Option<u32>,
    /// Megabits a second; `null` if the interface does not tell.
    speed_mbps: Option<u32>,
    /// The UDP port for packets; `null` for any free port.
    udp_port: Option<u16>,
    pci_path: Option<String>,
    /// Hexadecimal digits, in the form of other tools; `null` for a device in software.
    guid: Option<String>,
    /// The number of the port on the card.
    card_port: u32,
    /// The most queue pairs; `null` if no limit is known.
    qps_max: Option<u32>,
    state: &'static str,
    recvs_max: usize,
    relaxed_ordering: bool,
    /// The data path between the device and each GPU.
    gpus: Vec<ShownGpu>,
}

/// The data path between a device and one GPU.
#[derive(Serialize)]
struct ShownGpu {
    gpu: u32,
    name: String,
    pci_bus_id: String,
    path: String,
    flush: String,
}

impl Shown {
    fn new(info: DeviceInfo, gpus: Vec<ShownGpu>, settings: &Settings) -> Self {
        let is_nic = info.kind != DeviceKind::Socket;
        let (mtu, path_mtu) = (settings.mtu_bytes(&info), info.mtu.bytes());
        Shown {
            gpus,
            kind: info.kind.to_string(),
            address: info.address.to_string(),
            gid: info.gid.to_string(),
            gid_index: info.gid_index,
            gid_why: info.gid_why,
            link_layer: match info.link_layer {
                LinkLayer::Infiniband => "InfiniBand",
                LinkLayer::Ethernet => "Ethernet",
            },
            mtu: is_nic.then_some(mtu),
            path_mtu: is_nic.then_some(path_mtu),
            speed_mbps: info.speed_mbps,
            udp_port: info.udp_port,
            pci_path: info.pci_path,
            guid: info.guid.map(|guid| format!("{guid:016x}")),
            card_port: info.card_port,
            qps_max: info.qps_max,
            state: if info.up { "active" } else { "down" },
            recvs_max: info.recvs_max,
            relaxed_ordering: info.relaxed_ordering,
            name: info.name,
            netdev: info.netdev,
        }
    }
}

pub(crate) fn run(args: &Args, settings: &Settings) -> Result<ExitCode, Failure> {
    let survey = Device::survey(settings)?;
    for line in &survey.left_out {
        tell(line);
    }
    let gpus = invar::gpus().unwrap_or_else(|error| {
        tell(format_args!("no GPUs: {error}"));
        Vec::new()
    });
    let shown = |info| {
        let gpus = gpus_of(&info, &gpus, settings);
        Shown::new(info, gpus, settings)
    };
    let devices: Vec<Shown> = survey.devices.into_iter().map(shown).collect();
    let text = if args.json { pretty_json(&devices)? } else { as_table(&devices) };
    print(io::stdout(), "the list", text.trim_end())?;
    Ok(ExitCode::SUCCESS)
}

fn gpus_of(info: &DeviceInfo, gpus: &[GpuInfo], settings: &Settings) -> Vec<ShownGpu> {
    let paths = info.gpu_paths(gpus, settings).unwrap_or_else(|error| {
        tell(format_args!("{} and the GPUs: {error}", info.name));
        Vec::new()
    });
    let shown = |(gpu, path): (&GpuInfo, GpuPath)| ShownGpu {
        gpu: gpu.ordinal,
        name: gpu.name.clone(),
        pci_bus_id: gpu.pci_bus_id.clone(),
        path: path.decision.to_string(),
        flush: path.flush.to_string(),
    };
    gpus.iter().zip(paths).map(shown).collect()
}

fn as_table(devices: &[Shown]) -> String {
    let heads = ["name", "kind", "link layer", "netdev", "address", "MTU", "speed", "state"];
    let of_ports = columns(heads, devices, |device| {
        let speed = device.speed_mbps.map_or("-".to_owned(), |mbps| format!("{mbps} Mb/s"));
        [
            device.name.clone(),
            device.kind.clone(),
            device.link_layer.to_owned(),
            if device.netdev.is_empty() { "-".to_owned() } else { device.netdev.clone() },
            device.address.clone(),
            device.mtu.map_or("-".to_owned(), |bytes| bytes.to_string()),
            speed,
            device.state.to_owned(),
        ]
    });
    let heads = ["name", "UDP port", "GID", "index", "why this GID"];
    let of_gids = columns(heads, devices, |device| {
        [
            device.name.clone(),
            device.udp_port.map_or("any".to_owned(), |port| port.to_string()),
            device.gid.clone(),
            device.gid_index.to_string(),
            device.gid_why.clone(),
        ]
    });
    let gpus = devices.iter().flat_map(|device| {
        device.gpus.iter().map(|gpu| {
            let ShownGpu { gpu, name, pci_bus_id, path, flush } = gpu;
            format!("{} and GPU {gpu} ({name}, {pci_bus_id}): {path}; {flush}\n", device.name)
        })
    });
    let gpus: String = gpus.collect();
    format!("{of_ports}\n{of_gids}{gpus}")
}

/// A table with a row for each device.
fn columns<const N: usize>(
    heads: [&str; N],
    devices: &[Shown],
    row: impl Fn(&Shown) -> [String; N],
) -> String {
    let mut rows = vec![heads.map(str::to_owned)];
    rows.extend(devices.iter().map(row));
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width);
    let line = |row: &[String; N]| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    rows.iter().map(line).collect()
}
