//! Devices of several ports, which carry each connection together.

use std::net::SocketAddr;
use std::sync::Arc;

use invar_core::conn::RAILS_MAX;
use invar_core::device::data_access;
use invar_core::nic::{Nic, NicError};
use invar_linux::either::Either;
use invar_linux::rails::{JOINT, Rails, STANDBY, joined_name};
use invar_linux::soft::{SoftConfig, SoftNic};
use invar_verbs::VerbsNic;

use super::registration::Registrations;
use super::{Device, Inner, no_device, rdma, scoped};
use crate::device_info::{DeviceInfo, DeviceKind, Survey};
use crate::error::Kind;
use crate::raw::{Adapter, NicKind, SharedNic, adapt};
use crate::{Error, Settings};

/// How to name rails.
const HOW: &str = "write as in a+b for two rails, and as in a+b/c for a standby rail c";

/// Whether a name is that of a device of several rails.
pub(super) fn is_of_rails(name: &str) -> bool {
    name.contains(JOINT) || name.contains(STANDBY)
}

/// Puts the devices that `INVAR_RAILS` asks for in place of their rails.
pub(super) fn join(survey: &mut Survey, groups: &str) -> Result<(), Error> {
    for name in groups.split(',').map(str::trim).filter(|name| !name.is_empty()) {
        let joined = describe(name, survey).map_err(|error| match is_of_rails(name) {
            true => error,
            false => {
                Kind::Setting(format!("INVAR_RAILS={groups}: '{name}' is one device; {HOW}")).into()
            }
        })?;
        let is_rail = |info: &DeviceInfo| joined.rails.iter().any(|rail| rail.name == info.name);
        let first = survey.devices.iter().position(is_rail).unwrap_or_default();
        survey.devices.retain(|info| !is_rail(info));
        survey.devices.insert(first.min(survey.devices.len()), joined);
    }
    Ok(())
}

/// Describes the device of a name like `mlx5_0+mlx5_1/mlx5_2`.
pub(super) fn describe(name: &str, survey: &Survey) -> Result<DeviceInfo, Error> {
    let refused = |why: &str| Error::from(Kind::Setting(format!("the rails {name}: {why}; {HOW}")));
    let mut rails: Vec<DeviceInfo> = Vec::new();
    for (part, names) in name.split(STANDBY).enumerate() {
        if part > 1 {
            return Err(refused("there are two lists of standby rails"));
        }
        for rail in names.split(JOINT).map(str::trim) {
            if rail.is_empty() {
                return Err(refused("a name is missing"));
            }
            let mut devices = survey.devices.iter();
            let found = devices.find(|info| info.name == rail && info.rails.is_empty());
            let found = found.ok_or_else(|| no_device(rail, survey))?;
            rails.push(DeviceInfo { standby: part == 1, ..found.clone() });
        }
    }
    DeviceInfo::joined(&rails)
}

impl DeviceInfo {
    /// Describes the device that several devices make together. Each connection runs over all their ports, its
    /// rails. Those that are [standby](DeviceInfo::standby) carry data only while no other one works.
    /// [`Device::open_for`] opens the device.
    ///
    /// # Errors
    /// The devices cannot work together: they are not 2 to 8 different RDMA devices and software NICs of one link
    /// layer, or all of them are standby.
    pub fn joined(rails: &[DeviceInfo]) -> Result<DeviceInfo, Error> {
        let (standby, active): (Vec<_>, Vec<_>) = rails.iter().partition(|rail| rail.standby);
        let name = joined_name(&names(&active), &names(&standby));
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
            return Err(refused(format!("one device is no device of rails; {HOW}")));
        };
        if active.is_empty() {
            return Err(refused("all of them are standby".to_owned()));
        }
        if rails.len() > RAILS_MAX {
            return Err(refused(format!(
                "{} devices; at most {RAILS_MAX} work together",
                rails.len()
            )));
        }
        let is_rail = |kind| matches!(kind, DeviceKind::Verbs | DeviceKind::Soft);
        if let Some(other) = rails.iter().find(|rail| !is_rail(rail.kind)) {
            return Err(refused(format!(
                "{} is {}; rails are RDMA devices or software NICs",
                other.name, other.kind
            )));
        }
        if let Some(other) = rails.iter().find(|rail| rail.link_layer != first.link_layer) {
            let why = format!("{} and {} have different link layers", first.name, other.name);
            return Err(refused(why));
        }
        let speed: Option<u32> = active.iter().map(|rail| rail.speed_mbps).sum();
        Ok(DeviceInfo {
            name,
            speed_mbps: speed,
            up: rails.iter().any(|rail| rail.up),
            qps_max: rails.iter().filter_map(|rail| rail.qps_max).min(),
            rail_id: common(rails, |rail| rail.rail_id),
            plane_id: common(rails, |rail| rail.plane_id),
            relaxed_ordering: rails.iter().all(|rail| rail.relaxed_ordering),
            standby: false,
            rails: active.into_iter().chain(standby).cloned().collect(),
            ..first.clone()
        })
    }
}

/// The number that all devices have.
fn common(devices: &[DeviceInfo], number: fn(&DeviceInfo) -> Option<i16>) -> Option<i16> {
    let first = devices.first().and_then(number);
    first.filter(|_| devices.iter().all(|device| number(device) == first))
}

fn names<'a>(devices: &[&'a DeviceInfo]) -> Vec<&'a str> {
    devices.iter().map(|device| device.name.as_str()).collect()
}

/// Opens a device of rails.
pub(super) fn open(info: &DeviceInfo, settings: &Settings) -> Result<Device, Error> {
    let verbs = |rail: &DeviceInfo| {
        let config = rdma::config(&rail.name, settings);
        VerbsNic::open(&config).map_err(|error| Error::from(Kind::Rdma(error)))
    };
    let soft = |rail: &DeviceInfo| {
        let addr = scoped(rail, SocketAddr::new(rail.address, 0))?;
        let ports = settings.udp_ports();
        let config = SoftConfig { ports, ..SoftConfig::new(&rail.name, addr) };
        SoftNic::open(&config).map_err(|error| {
            Error::io(format_args!("opening {} at {}", rail.name, addr.ip()), error)
        })
    };
    let [has_verbs, has_soft] = [DeviceKind::Verbs, DeviceKind::Soft]
        .map(|kind| info.rails.iter().any(|rail| rail.kind == kind));
    let adapter = match (has_verbs, has_soft) {
        (true, false) => adapt_all(info, NicKind::CUSTOM_WITH_GPU, verbs)?,
        (false, _) => adapt_all(info, NicKind::CUSTOM, soft)?,
        (true, true) => adapt_all(info, NicKind::CUSTOM, |rail| match rail.kind {
            DeviceKind::Verbs => verbs(rail).map(Either::First),
            _ => soft(rail).map(Either::Second),
        })?,
    };
    let access = if has_verbs { rdma::data_access(&settings.rdma) } else { data_access(0, false) };
    let role = |rail: &DeviceInfo| if rail.standby { " (standby)" } else { "" };
    let place = |rail: &DeviceInfo| format!("{} on {}{}", rail.name, rail.netdev, role(rail));
    let rails: Vec<String> = info.rails.iter().map(place).collect();
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
    let active = info.rails.iter().filter(|rail| !rail.standby).count();
    let nic = Rails::new(nics, active).map_err(failed)?;
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
    fn joined_devices_have_the_rail_and_the_plane_that_all_have() {
        let mut survey = survey();
        for (info, plane) in survey.devices.iter_mut().zip(0..) {
            (info.rail_id, info.plane_id) = (Some(3), Some(plane));
        }
        join(&mut survey, "b+e").expect("two rails");
        assert_eq!((survey.devices[1].rail_id, survey.devices[1].plane_id), (Some(3), None));
    }

    #[test]
    fn rails_after_a_slash_are_standby_and_add_no_speed() {
        let mut survey = survey();
        join(&mut survey, "e / b+c").expect("three rails");
        let joined = survey.devices.iter().find(|info| info.name == "e/b+c").expect("the device");
        assert_eq!(joined.speed_mbps, Some(100));
        let rails: Vec<_> = joined.rails.iter().map(|rail| (&*rail.name, rail.standby)).collect();
        assert_eq!(rails, [("e", false), ("b", true), ("c", true)]);
    }

    #[test]
    fn rails_that_cannot_work_together_are_named() {
        for (groups, why) in [
            ("b", "'b' is one device"),
            ("/b", "a name is missing; write as in"),
            ("b/", "a name is missing"),
            ("b++c", "a name is missing"),
            ("b/c/e", "two lists of standby rails"),
            ("b/b", "b is there twice"),
            ("b/x", "no device is called 'x'"),
            ("b+b", "b is there twice"),
            ("b+x", "no device is called 'x'"),
            ("b/d", "d is socket; rails are"),
            ("b+c,c+e", "no device is called 'c'"),
            ("d+d", "d is there twice"),
            ("i+a", "different link layers"),
        ] {
            let error = join(&mut survey(), groups).expect_err(groups).to_string();
            assert!(error.contains(why), "{groups}: {error}");
        }
    }
}
