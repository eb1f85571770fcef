//! Devices of several ports, which carry each connection together.

use std::net::SocketAddr;
use std::sync::Arc;

use invar_core::conn::RAILS_MAX;
use invar_core::device::data_access;
use invar_core::nic::{Nic, NicError};
use invar_linux::rails::Rails;
use invar_linux::soft::{SoftConfig, SoftNic};
use invar_verbs::{VerbsConfig, VerbsNic};

use super::registration::Registrations;
use super::{Device, Inner, no_device, rdma, scoped};
use crate::device_info::{DeviceInfo, DeviceKind, Survey};
use crate::error::Kind;
use crate::raw::{Adapter, NicKind, SharedNic, adapt};
use crate::{Error, Settings};

/// Joins the names of the rails of a device.
const JOINT: char = '+';

/// Puts the devices that `INVAR_RAILS` asks for in place of their rails.
pub(super) fn join(survey: &mut Survey, groups: &str) -> Result<(), Error> {
    for name in groups.split(',').map(str::trim).filter(|name| !name.is_empty()) {
        let joined = describe(name, survey).map_err(|error| match name.contains(JOINT) {
            true => error,
            false => Kind::Setting(format!(
                "INVAR_RAILS={groups}: '{name}' is one device; join the rails of a device by {JOINT}"
            ))
            .into(),
        })?;
        let is_rail = |info: &DeviceInfo| joined.rails.iter().any(|rail| rail.name == info.name);
        let first = survey.devices.iter().position(is_rail).unwrap_or_default();
        survey.devices.retain(|info| !is_rail(info));
        survey.devices.insert(first.min(survey.devices.len()), joined);
    }
    Ok(())
}

/// Describes the device of a name like `mlx5_0+mlx5_1`.
pub(super) fn describe(name: &str, survey: &Survey) -> Result<DeviceInfo, Error> {
    let mut rails: Vec<DeviceInfo> = Vec::new();
    for rail in name.split(JOINT).map(str::trim) {
        let found = survey.devices.iter().find(|info| info.name == rail && info.rails.is_empty());
        let found = found.ok_or_else(|| no_device(rail, survey))?;
        rails.push(found.clone());
    }
    DeviceInfo::joined(&rails)
}

impl DeviceInfo {
    /// Describes the device that several devices make together. Each connection runs over all their ports, its
    /// rails. [`Device::open_for`] opens the device.
    ///
    /// # Errors
    /// The devices cannot work together: they are not 2 to 8 different ones, or not of one kind and link layer.
    pub fn joined(rails: &[DeviceInfo]) -> Result<DeviceInfo, Error> {
        let name = rails.iter().map(|rail| rail.name.as_str()).collect::<Vec<_>>().join("+");
        let refused = |why: String| Error::from(Kind::Setting(format!("the rails {name}: {why}")));
        for (i, rail) in rails.iter().enumerate() {
            if rails[..i].iter().any(|known| known.name == rail.name) {
                return Err(refused(format!("{} is there twice", rail.name)));
            }
            if !rail.rails.is_empty() {
                return Err(refused(format!("{} has rails itself", rail.name)));
            }
        }
        let [first, _, ..] = rails else {
            return Err(refused(format!(
                "one device is no device of rails; join several by {JOINT}"
            )));
        };
        if rails.len() > RAILS_MAX {
            return Err(refused(format!(
                "{} devices; at most {RAILS_MAX} work together",
                rails.len()
            )));
        }
        let other = rails.iter().find(|rail| rail.kind != first.kind);
        if let Some(other) = other {
            return Err(refused(format!(
                "{} is {}, and {} is {}; all rails must be of one kind",
                first.name, first.kind, other.name, other.kind
            )));
        }
        if !matches!(first.kind, DeviceKind::Verbs | DeviceKind::Soft) {
            return Err(refused(format!(
                "{} is {}; rails are RDMA devices or software NICs (INVAR_TRANSPORT=ib or soft)",
                first.name, first.kind
            )));
        }
        if let Some(other) = rails.iter().find(|rail| rail.link_layer != first.link_layer) {
            let why = format!("{} and {} have different link layers", first.name, other.name);
            return Err(refused(why));
        }
        let speed: Option<u32> = rails.iter().map(|rail| rail.speed_mbps).sum();
        Ok(DeviceInfo {
            name,
            speed_mbps: speed,
            up: rails.iter().any(|rail| rail.up),
            qps_max: rails.iter().filter_map(|rail| rail.qps_max).min(),
            relaxed_ordering: rails.iter().all(|rail| rail.relaxed_ordering),
            ..DeviceInfo { rails: rails.to_vec(), ..first.clone() }
        })
    }
}

/// Opens a device of rails.
pub(super) fn open(info: &DeviceInfo, settings: &Settings) -> Result<Device, Error> {
    let (adapter, access) = match info.kind {
        DeviceKind::Verbs => {
            let open = |rail: &DeviceInfo| {
                let config = VerbsConfig { gid: settings.rdma.gid, ..VerbsConfig::new(&rail.name) };
                VerbsNic::open(&config).map_err(|error| Kind::Rdma(error).into())
            };
            (adapt_all(info, NicKind::CUSTOM_WITH_GPU, open)?, rdma::data_access(&settings.rdma))
        }
        DeviceKind::Soft => {
            let open = |rail: &DeviceInfo| {
                let addr = scoped(rail, SocketAddr::new(rail.address, 0))?;
                let ports = settings.udp_ports();
                let config = SoftConfig { ports, ..SoftConfig::new(&rail.name, addr) };
                SoftNic::open(&config).map_err(|error| {
                    Error::io(format_args!("opening {} at {}", rail.name, addr.ip()), error)
                })
            };
            (adapt_all(info, NicKind::CUSTOM, open)?, data_access(0, false))
        }
        _ => return Err(no_device(&info.name, &Survey::default())),
    };
    let rails: Vec<String> =
        info.rails.iter().map(|rail| format!("{} on {}", rail.name, rail.netdev)).collect();
    log::info!("{}: each connection runs over {}", info.name, rails.join(", "));
    let (info, registrations) = (info.clone(), Registrations::new());
    Ok(Device(Arc::new(Inner { info, data_access: access, registrations, adapter, soft: None })))
}

fn adapt_all<N: SharedNic>(
    info: &DeviceInfo,
    kind: NicKind<Rails<N>>,
    open: impl Fn(&DeviceInfo) -> Result<N, Error>,
) -> Result<Arc<dyn Adapter>, Error> {
    let failed = |source: NicError| Kind::Nic { device: info.name.clone(), source };
    let nics = info.rails.iter().map(open).collect::<Result<Vec<N>, Error>>()?;
    let nic = Rails::new(nics).map_err(failed)?;
    let pd = nic.alloc_pd().map_err(failed)?;
    Ok(adapt(nic, pd, kind))
}

#[cfg(test)]
mod tests {
    use invar_core::nic::LinkLayer;

    use super::*;

    fn survey() -> Survey {
        let soft = Device::survey(&Settings::default()).expect("a survey").devices;
        let soft = soft.into_iter().find(|info| info.kind == DeviceKind::Soft).expect("loopback");
        let named = |(name, kind): (&str, _)| DeviceInfo {
            name: name.to_owned(),
            kind,
            speed_mbps: Some(100),
            ..soft.clone()
        };
        use DeviceKind::{Socket, Soft, Verbs};
        let devices = [("a", Verbs), ("b", Soft), ("c", Soft), ("d", Socket), ("e", Soft)];
        let mut devices: Vec<DeviceInfo> = devices.into_iter().map(named).collect();
        let over_ib = LinkLayer::Infiniband;
        devices.push(DeviceInfo { link_layer: over_ib, ..named(("i", Verbs)) });
        Survey { devices, ..Survey::default() }
    }

    #[test]
    fn rails_take_the_place_of_their_devices() {
        let mut survey = survey();
        join(&mut survey, "b+e, ").expect("two rails");
        let names: Vec<&str> = survey.devices.iter().map(|info| info.name.as_str()).collect();
        assert_eq!(names, ["a", "b+e", "c", "d", "i"]);
        assert_eq!((survey.devices[1].speed_mbps, survey.devices[1].rails.len()), (Some(200), 2));
    }

    #[test]
    fn rails_that_cannot_work_together_are_named() {
        for (groups, why) in [
            ("b", "'b' is one device"),
            ("b+b", "b is there twice"),
            ("b+x", "no device is called 'x'"),
            ("a+b", "a is ib, and b is soft"),
            ("b+c,c+e", "no device is called 'c'"),
            ("d+d", "d is there twice"),
            ("i+a", "different link layers"),
        ] {
            let error = join(&mut survey(), groups).expect_err(groups).to_string();
            assert!(error.contains(why), "{groups}: {error}");
        }
    }
}
