//! State of the process: settings, devices, and the number of communicators that use the plugin.

use std::ffi::{c_int, c_void};
use std::net::IpAddr;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use invar::{Choice, DeviceInfo, DeviceKind, LinkLayer, Settings};

use crate::abi::{Code, CommConfig, Logger, ProfilerCallback};
use crate::context::Context;
use crate::logger;
use crate::net_device::{NetDevice, may_reach_gpus};
use crate::outcome::{Failed, Outcome, call, misused, null, refused};
use crate::profiler;

/// The context of collNet where it is off. NCCL does not finalize such a context.
const OFF: usize = 1 << 17;

/// The most devices that NCCL may join in a process (`MAX_IB_VDEVS`).
const JOINED_MAX: usize = 256;

static HOST: Mutex<State> = Mutex::new(State { host: None, contexts: 0, ended: None });

struct State {
    host: Option<Arc<Host>>,
    /// Number of contexts that NCCL has not finalized.
    contexts: usize,
    /// The numbers of the devices at the last `finalize`, which has dropped the host.
    ended: Option<Numbering>,
}

/// The numbers of devices. NCCL stores them for the process, so they stay while the devices are the same.
struct Numbering {
    names: Vec<String>,
    /// The members of each joined device.
    joined: Vec<Vec<c_int>>,
}

/// Settings and devices that `init` found.
pub(crate) struct Host {
    pub(crate) settings: Settings,
    devices: Vec<Arc<NetDevice>>,
    /// The devices that NCCL has joined. Their numbers follow those of `devices`.
    joined: Mutex<Vec<Arc<NetDevice>>>,
    /// The number of joined devices that `devices` counts: NCCL has asked for them since its `init`.
    pub(crate) shown: AtomicUsize,
    /// The number of joined devices that collNet's `devices` counts. NCCL takes the first answer of each
    /// `devices` for the number of physical devices.
    pub(crate) shown_by_collnet: AtomicUsize,
}

/// `init` before v10.
pub(crate) unsafe extern "C" fn init(logger: Option<Logger>) -> Code {
    call(|| start(logger, None).map(drop))
}

pub(crate) unsafe extern "C" fn init_v10(
    logger: Option<Logger>,
    // NCCL 2.26 and 2.27 have v10. NCCL 2.27.7 gives a step to every transfer, and reads through a null pointer in this
    // callback if its profiler does not take events of steps (`ncclProfilerCallback` in its libnccl.so.2).
    _profiler: Option<ProfilerCallback>,
) -> Code {
    call(|| start(logger, None).map(drop))
}

/// `init` since v11.
pub(crate) unsafe extern "C" fn init_v11(
    context: *mut *mut c_void,
    _communicator: u64,
    config: *const CommConfig,
    logger: Option<Logger>,
    profiler: Option<ProfilerCallback>,
) -> Code {
    call(|| {
        let mut state = start(logger, profiler)?;
        if context.is_null() {
            return Err(null("init: context"));
        }
        // SAFETY: NCCL promises that `config` is null or points to a configuration.
        let config = Context::new(unsafe { config.as_ref() });
        state.contexts += 1;
        // SAFETY: NCCL promises that `context` has room for a context.
        unsafe { context.write(config.to_ptr()) };
        Ok(())
    })
}

/// `init` of collNet before v11.
pub(crate) unsafe extern "C" fn init_collnet(logger: Option<Logger>) -> Code {
    call(|| start_collnet(logger).map(drop))
}

/// `init` of collNet since v11. It has no configuration.
pub(crate) unsafe extern "C" fn init_collnet_v11(
    context: *mut *mut c_void,
    _communicator: u64,
    logger: Option<Logger>,
) -> Code {
    call(|| {
        if context.is_null() {
            return Err(null("init: context"));
        }
        let mut state = start_collnet(logger)?;
        let is_on = state.host.as_ref().is_some_and(|host| host.settings.offers_collnet());
        let made = match is_on {
            true => {
                state.contexts += 1;
                Context::new(None).to_ptr()
            }
            false => ptr::without_provenance_mut(OFF),
        };
        // SAFETY: NCCL promises that `context` has room for a context.
        unsafe { context.write(made) };
        Ok(())
    })
}

/// Ends a context of NCCL. The last context drops the host, and `abandon` cancels the connections that are
/// pending. NCCL 2.28 and 2.29 end a null context after `init` has failed.
pub(crate) fn end_context(context: *mut c_void, abandon: impl FnOnce()) -> Outcome {
    if context.is_null() || context.addr() == OFF {
        return Ok(());
    }
    Context::from_ptr(context)?;
    let mut state = state();
    match state.contexts {
        0 => return Err(misused("finalize without init")),
        1 => {
            state.ended = state.host.take().map(|host| host.numbering());
            abandon();
        }
        _ => {}
    }
    state.contexts -= 1;
    Ok(())
}

/// `setNetAttr`: NCCL passes hints on the use of a context's connections. The plugin ignores them.
pub(crate) unsafe extern "C" fn set_net_attr(context: *mut c_void, _: *const c_void) -> Code {
    call(|| Context::from_ptr(context).map(drop))
}

/// `devices`. NCCL calls it before `makeVDevice` and afterwards, and takes the difference for the number of
/// joined devices.
pub(crate) unsafe extern "C" fn devices(ndev: *mut c_int) -> Code {
    call(|| {
        if ndev.is_null() {
            return Err(null("devices: ndev"));
        }
        let host = get()?;
        let count = host.devices.len() + host.shown.load(Ordering::Relaxed);
        // SAFETY: NCCL promises that `ndev` has room for a number.
        unsafe { ndev.write(count as c_int) };
        Ok(())
    })
}

/// `devices` of collNet: counts the network's devices, or 0 if collNet is off. After 0 NCCL makes no further
/// call.
pub(crate) unsafe extern "C" fn devices_of_collnet(ndev: *mut c_int) -> Code {
    call(|| {
        if ndev.is_null() {
            return Err(null("devices: ndev"));
        }
        let host = get()?;
        let count = match host.settings.offers_collnet() {
            true => host.devices.len() + host.shown_by_collnet.load(Ordering::Relaxed),
            false => 0,
        };
        // SAFETY: NCCL promises that `ndev` has room for a number.
        unsafe { ndev.write(count as c_int) };
        Ok(())
    })
}

/// Returns the host if it offers collNet.
pub(crate) fn with_collnet() -> Result<Arc<Host>, Failed> {
    let host = get()?;
    match host.settings.offers_collnet() {
        true => Ok(host),
        false => Err(misused("collNet is off; NCCL_COLLNET_ENABLE=1 turns it on")),
    }
}

/// Returns the host, between `init` and the last `finalize`.
pub(crate) fn get() -> Result<Arc<Host>, Failed> {
    state().host.clone().ok_or_else(|| misused("a call before init, or after the last finalize"))
}

/// Finds the settings and devices, unless a living communicator already uses the device numbers.
fn start(
    logger: Option<Logger>,
    profiler: Option<ProfilerCallback>,
) -> Result<MutexGuard<'static, State>, Failed> {
    logger::install(logger);
    profiler::install(profiler);
    let mut state = state();
    if state.contexts == 0 || state.host.is_none() {
        let host = Host::find()?;
        let old = state.host.take().map(|host| host.numbering()).or(state.ended.take());
        if let Some(old) = old {
            host.keep(&old);
        }
        state.host = Some(Arc::new(host));
    }
    Ok(state)
}

/// Takes the settings and devices that the network's `init` has found, or finds them.
fn start_collnet(logger: Option<Logger>) -> Result<MutexGuard<'static, State>, Failed> {
    logger::install(logger);
    let mut state = state();
    let host = match &state.host {
        Some(host) => Arc::clone(host),
        None => Arc::new(Host::find()?),
    };
    if host.settings.offers_collnet() {
        log::info!(
            "collNet is on (NCCL_COLLNET_ENABLE=1): the processors of the hosts reduce, over the devices \
             of this network; no switch does"
        );
    }
    state.host = Some(host);
    Ok(state)
}

fn state() -> MutexGuard<'static, State> {
    HOST.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Host {
    fn find() -> Result<Self, Failed> {
        // NCCL only polls.
        let settings = Settings::from_env().map_err(|error| refused(&error))?.sleeps(false);
        let Choice { devices, reason, oob } =
            Choice::make(&settings).map_err(|error| refused(&error))?;
        let may_reach_gpus = devices.iter().any(may_reach_gpus);
        let gpus = if may_reach_gpus { invar::gpus() } else { Ok(Vec::new()) };
        let gpus = gpus.unwrap_or_else(|error| {
            log::info!("no GPUs: {error}");
            Vec::new()
        });
        let devices: Vec<Arc<NetDevice>> = devices
            .into_iter()
            .zip(0..)
            .map(|(info, number)| Arc::new(NetDevice::new(number, info, &gpus, &settings)))
            .collect();
        log::info!("{reason}");
        let (interface, address) = oob;
        log::info!(
            "{}",
            using(devices.iter().map(|device| &device.info), &interface, address.ip())
        );
        let [shown, shown_by_collnet] = [0, 0].map(AtomicUsize::new);
        Ok(Host { settings, devices, joined: Mutex::default(), shown, shown_by_collnet })
    }

    fn numbering(&self) -> Numbering {
        Numbering {
            names: self.devices.iter().map(|device| device.info.name.clone()).collect(),
            joined: self.joined().iter().map(|device| device.members.clone()).collect(),
        }
    }

    /// Joins the devices that were joined before, if the devices are the same.
    fn keep(&self, old: &Numbering) {
        if self.devices.iter().map(|device| &device.info.name).eq(&old.names) {
            let join = |numbers: &Vec<c_int>| self.join(numbers, &self.shown).map(drop);
            let all_joined = old.joined.iter().try_for_each(join);
            if all_joined.is_err() {
                log::warn!("the devices that makeVDevice had joined cannot be joined any more");
            }
        }
        self.shown.store(0, Ordering::Relaxed);
    }

    /// Returns the device that has this number in NCCL.
    pub(crate) fn device(&self, number: c_int) -> Result<Arc<NetDevice>, Failed> {
        let joined = self.joined();
        let all = self.devices.iter().chain(joined.iter());
        let device = usize::try_from(number).ok().and_then(|number| all.clone().nth(number));
        device.cloned().ok_or_else(|| {
            misused(format_args!(
                "device {number}; there are {}",
                self.devices.len() + joined.len()
            ))
        })
    }

    /// Joins the devices of these numbers, and counts the joined device in `shown`. Returns the joined device's
    /// number. A later call with the same devices returns the same number. A single device that could be joined gets
    /// a second number, since some versions of NCCL call `makeVDevice` for each single device.
    pub(crate) fn join(&self, numbers: &[c_int], shown: &AtomicUsize) -> Result<c_int, Failed> {
        let find = |number: &c_int| {
            let own = usize::try_from(*number).ok().and_then(|number| self.devices.get(number));
            own.cloned().ok_or_else(|| {
                misused(format_args!(
                    "makeVDevice: device {number}; {} can be joined",
                    self.devices.len()
                ))
            })
        };
        let members = numbers.iter().map(find).collect::<Result<Vec<_>, Failed>>()?;
        match members.as_slice() {
            [] => return Err(misused("makeVDevice: no devices")),
            [one] if !can_be_joined(&one.info) => return Ok(one.number),
            _ => {}
        }
        if members.len() > 1 && !self.settings.merges_nics() {
            log::info!("makeVDevice: NCCL_IB_MERGE_NICS=0 forbids joined devices");
            return Err(Failed(Code::INVALID_USAGE));
        }
        let mut joined = self.joined();
        let show = |place: usize| _ = shown.fetch_max(place + 1, Ordering::Relaxed);
        if let Some(known) = joined.iter().position(|device| device.members == numbers) {
            show(known);
            return Ok(joined[known].number);
        }
        if joined.len() == JOINED_MAX {
            return Err(misused(format_args!("makeVDevice: {JOINED_MAX} devices are joined")));
        }
        let infos: Vec<DeviceInfo> = members.iter().map(|device| device.info.clone()).collect();
        let info = match infos.as_slice() {
            [one] => one.clone(),
            // The first versions of NCCL that join devices abort if `makeVDevice` returns INVALID_USAGE.
            all => DeviceInfo::joined(all).map_err(|error| {
                log::info!("makeVDevice: {error}");
                Failed(Code::SYSTEM_ERROR)
            })?,
        };
        show(joined.len());
        let number = (self.devices.len() + joined.len()) as c_int;
        log::info!("device {number} is {}", info.name);
        joined.push(Arc::new(NetDevice::joined(number, info, &members)));
        Ok(number)
    }

    fn joined(&self) -> MutexGuard<'_, Vec<Arc<NetDevice>>> {
        self.joined.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether devices of this kind can be joined at all.
fn can_be_joined(info: &DeviceInfo) -> bool {
    matches!(info.kind, DeviceKind::Verbs | DeviceKind::Soft)
}

/// The line that NCCL logs about the devices in use: `Using [0]mlx5_0:1/RoCE [RO]; OOB
/// eth0:192.0.2.2<0>`. Where the devices are network interfaces, no OOB part follows: `Using
/// [0]eth0:192.0.2.2<0>`.
fn using<'a>(
    devices: impl Iterator<Item = &'a DeviceInfo>,
    oob_interface: &str,
    oob_address: IpAddr,
) -> String {
    let (mut line, mut ordering, mut oob) = ("Using".to_owned(), "", String::new());
    for (number, info) in devices.enumerate() {
        let DeviceInfo { name, card_port, link_layer, .. } = info;
        let on = match (info.kind, link_layer) {
            (DeviceKind::Socket, _) => endpoint(&info.netdev, info.address),
            (_, LinkLayer::Infiniband) => format!("{card_port}/IB"),
            (_, LinkLayer::Ethernet) => format!("{card_port}/RoCE"),
        };
        line += &format!(" [{number}]{name}:{on}");
        if info.relaxed_ordering {
            ordering = " [RO]";
        }
        if info.kind != DeviceKind::Socket {
            oob = format!("; OOB {oob_interface}:{}", endpoint(oob_interface, oob_address));
        }
    }
    line + ordering + &oob
}

/// Formats an address without a port, as `ncclSocketToString` does. A link-local address needs its
/// interface to be complete.
fn endpoint(interface: &str, address: IpAddr) -> String {
    match address {
        IpAddr::V6(v6) if v6.is_unicast_link_local() => format!("{v6}%{interface}<0>"),
        _ => format!("{address}<0>"),
    }
}

#[cfg(test)]
mod tests {
    use std::slice;

    use invar::Device;

    use super::*;

    /// Returns the loopback device of this kind, with another name, interface and address.
    fn device(kind: DeviceKind, name: &str, netdev: &str, address: &str) -> DeviceInfo {
        let listed = Device::survey(&Settings::default()).unwrap().devices;
        let mut info = listed.into_iter().find(|info| info.kind == kind).unwrap();
        info.name = name.to_owned();
        info.netdev = netdev.to_owned();
        info.address = address.parse().unwrap();
        info
    }

    fn line(devices: &[DeviceInfo], oob: &str) -> String {
        using(devices.iter(), "eth0", oob.parse().unwrap())
    }

    #[test]
    fn a_network_interface_is_named_by_its_address() {
        let eth0 = device(DeviceKind::Socket, "eth0", "eth0", "192.0.2.2");
        assert_eq!(line(slice::from_ref(&eth0), "192.0.2.2"), "Using [0]eth0:192.0.2.2<0>");
        let eth1 = device(DeviceKind::Socket, "eth1", "eth1", "fe80::1");
        let eth2 = device(DeviceKind::Socket, "eth2", "eth2", "2001:db8::1");
        assert_eq!(
            line(&[eth0, eth1, eth2], "192.0.2.2"),
            "Using [0]eth0:192.0.2.2<0> [1]eth1:fe80::1%eth1<0> [2]eth2:2001:db8::1<0>"
        );
    }

    #[test]
    fn a_nic_is_named_by_its_port_and_the_interface_beside_it_by_its_address() {
        let soft = device(DeviceKind::Soft, "soft0", "eth0", "192.0.2.2");
        assert_eq!(
            line(slice::from_ref(&soft), "192.0.2.2"),
            "Using [0]soft0:1/RoCE; OOB eth0:192.0.2.2<0>"
        );
        let mut card = soft.clone();
        (card.name, card.card_port) = ("mlx5_0".to_owned(), 2);
        (card.link_layer, card.relaxed_ordering) = (LinkLayer::Infiniband, true);
        assert_eq!(
            line(&[card, soft], "fe80::1"),
            "Using [0]mlx5_0:2/IB [1]soft0:1/RoCE [RO]; OOB eth0:fe80::1%eth0<0>"
        );
    }
}
