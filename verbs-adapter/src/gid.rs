//! Choice of a port's GID.
//!
//! A RoCE port has a GID for each address of its interface and each version of RoCE. Both ends must pick
//! GIDs that reach each other. Wrong choices are the usual cause of error 12, so the reason for each
//! choice is kept with it.

use std::fmt;
use std::net::IpAddr;

use invar_core::nic::Gid;
use invar_core::param::{AddressFamily, Params, Subnet};
use invar_linux::interface::Interface;

use crate::device::Opened;
use crate::sys::*;

/// The most entries of a device, of all its ports, that are read at once.
const ENTRIES_MAX: usize = 256;

/// The user's settings for GIDs, which are NCCL's parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GidRules {
    /// `NCCL_IB_GID_INDEX`; `None` means that the other rules choose.
    pub index: Option<u8>,
    /// `NCCL_IB_ROCE_VERSION_NUM`: the version of RoCE that the GID is for.
    pub roce_version: u8,
    /// `NCCL_IB_ADDR_FAMILY`: the kind of address that the GID has.
    pub family: AddressFamily,
    /// `NCCL_IB_ADDR_RANGE`: the subnet in which the GID lies.
    pub range: Option<Subnet>,
}

impl From<&Params<'_>> for GidRules {
    fn from(params: &Params<'_>) -> Self {
        GidRules {
            index: params.ib_gid_index,
            roce_version: params.ib_roce_version,
            family: params.ib_addr_family,
            range: params.ib_addr_range,
        }
    }
}

/// The rules for a user who sets nothing.
impl Default for GidRules {
    fn default() -> Self {
        GidRules::from(&Params::default())
    }
}

/// An entry of a port's GID table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GidEntry {
    /// Index of the entry in the table.
    pub index: u8,
    /// The GID itself.
    pub gid: Gid,
    /// Version of RoCE, 1 or 2; `None` if the version is unknown.
    pub roce_version: Option<u8>,
    /// Index of the network interface; 0 if the interface is unknown.
    pub ifindex: u32,
    /// Prefix length of the subnet, if an interface of this network namespace has the address.
    pub prefix_len: Option<u8>,
}

impl GidEntry {
    /// Whether `peer` is in the subnet of this address.
    fn shares_subnet(&self, peer: IpAddr) -> bool {
        let subnet = |bits| Subnet::new(self.gid.ip(), bits);
        self.prefix_len.and_then(subnet).is_some_and(|subnet| subnet.contains(peer))
    }
}

/// Formats the entry as `[3] ::ffff:10.0.0.1 RoCE v2`.
impl fmt::Display for GidEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}] {}", self.index, self.gid)?;
        match self.roce_version {
            Some(version) => write!(f, " RoCE v{version}"),
            None => Ok(()),
        }
    }
}

/// The chosen GID and the reason for the choice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChosenGid {
    /// The chosen entry.
    pub entry: GidEntry,
    /// The reason for the choice, for messages.
    pub why: String,
}

/// The reason why no GID of a port can be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GidError {
    /// `NCCL_IB_GID_INDEX` names an entry that does not exist.
    #[error("NCCL_IB_GID_INDEX={index}: the port has {}", listed(.there_is))]
    NoSuchIndex {
        /// The requested index.
        index: u8,
        /// The entries of the table.
        there_is: Vec<GidEntry>,
    },
    /// No GID is in the range that the user asks for.
    #[error("NCCL_IB_ADDR_RANGE: none of the port's GIDs is in it: {}", listed(.there_is))]
    OutOfRange {
        /// The entries of the table.
        there_is: Vec<GidEntry>,
    },
    /// The table is empty: the network interface has no address.
    #[error("the port has no GID: has its network interface an address, and is it up?")]
    None,
}

fn listed(entries: &[GidEntry]) -> String {
    if entries.is_empty() {
        return "no GID".to_owned();
    }
    entries.iter().map(GidEntry::to_string).collect::<Vec<_>>().join(", ")
}

/// Reads the GID table of a port, without empty entries.
pub(crate) fn table(opened: &Opened, port_num: u8, len: usize) -> Vec<GidEntry> {
    // Without the list of interfaces no entry counts as local, so all entries are equal in that.
    let interfaces = Interface::list().unwrap_or_default();
    let prefix_len = |ip| {
        let mut addresses = interfaces.iter().flat_map(|i| &i.addresses);
        addresses.find(|addr| addr.ip == ip).map(|addr| addr.prefix_len)
    };
    let one_by_one = || {
        let indices = (0..=u8::MAX).take(len);
        indices.filter_map(|index| read(opened, port_num, index)).collect()
    };
    let mut table = at_once(opened, port_num).unwrap_or_else(one_by_one);
    table.iter_mut().for_each(|entry| entry.prefix_len = prefix_len(entry.gid.ip()));
    table
}

/// Reads all entries of a port's GID table by one call of the kernel. Most tables have hundreds of places, and few
/// entries. Returns `None` if libibverbs or the kernel cannot do this.
fn at_once(opened: &Opened, port_num: u8) -> Option<Vec<GidEntry>> {
    let query_gid_table = opened.library().query_gid_table?;
    let mut entries = [ibv_gid_entry::default(); ENTRIES_MAX];
    let (at, size) = (entries.as_mut_ptr(), size_of::<ibv_gid_entry>());
    // SAFETY: The context is open, and `entries` has room for `ENTRIES_MAX` entries of `size` bytes.
    let count = unsafe { query_gid_table(opened.raw(), at, ENTRIES_MAX, 0, size) };
    let found = entries.get(..usize::try_from(count).ok()?)?;
    let of_port = found.iter().filter(|entry| entry.port_num == u32::from(port_num));
    Some(
        of_port
            .filter_map(|entry| of_library(u8::try_from(entry.gid_index).ok()?, entry))
            .collect(),
    )
}

/// Reads an entry of the GID table; `None` means that the entry is empty.
pub(crate) fn read(opened: &Opened, port_num: u8, index: u8) -> Option<GidEntry> {
    let library = opened.library();
    if let Some(query_gid_ex) = library.query_gid_ex {
        let mut entry = ibv_gid_entry::default();
        let (port, size) = (u32::from(port_num), size_of::<ibv_gid_entry>());
        // SAFETY: The context is open, and `entry` has room for `size` bytes.
        let rc = unsafe { query_gid_ex(opened.raw(), port, u32::from(index), &mut entry, 0, size) };
        if rc == 0 {
            return of_library(index, &entry);
        }
    }
    let mut gid = ibv_gid::default();
    // SAFETY: The context is open, and `gid` has room for a GID.
    let rc = unsafe { (library.query_gid)(opened.raw(), port_num, i32::from(index), &mut gid) };
    if rc != 0 {
        return None;
    }
    let version = crate::sysfs::gid_type(opened.name(), port_num, index);
    entry_of(index, gid, version, 0)
}

fn of_library(index: u8, entry: &ibv_gid_entry) -> Option<GidEntry> {
    let roce_version = match entry.gid_type {
        IBV_GID_TYPE_ROCE_V1 => Some(1),
        IBV_GID_TYPE_ROCE_V2 => Some(2),
        _ => None,
    };
    entry_of(index, entry.gid, roce_version, entry.ndev_ifindex)
}

fn entry_of(index: u8, gid: ibv_gid, roce_version: Option<u8>, ifindex: u32) -> Option<GidEntry> {
    let is_empty = gid.raw == [0; 16];
    let gid = Gid(gid.raw);
    (!is_empty).then_some(GidEntry { index, gid, roce_version, ifindex, prefix_len: None })
}

/// Chooses a GID from the table of a RoCE port (`net_ib.cc ncclIbGetGidIndex` of NCCL since 2.21).
///
/// If the user sets an index, the choice is that entry. Otherwise a range excludes the entries outside
/// of it. The rules rank the remaining entries by these criteria, the most important first, and take the
/// first of equals:
///
/// 1. The entry has the wanted version of RoCE.
/// 2. The address belongs to this network namespace; a device also shows the GIDs of other namespaces.
/// 3. The address has the wanted family.
/// 4. The address is in the subnet of `peer`, the address from which the peer has connected.
/// 5. The address is routable, not link-local.
///
/// NCCL does not check criteria 2 and 4.
pub(crate) fn choose(
    table: &[GidEntry],
    rules: &GidRules,
    peer: Option<IpAddr>,
) -> Result<ChosenGid, GidError> {
    if let Some(index) = rules.index {
        return match table.iter().find(|entry| entry.index == index) {
            Some(&entry) => Ok(ChosenGid { entry, why: "NCCL_IB_GID_INDEX".to_owned() }),
            None => Err(GidError::NoSuchIndex { index, there_is: table.to_vec() }),
        };
    }
    if table.is_empty() {
        return Err(GidError::None);
    }
    let in_range = |entry: &&GidEntry| rules.range.is_none_or(|r| r.contains(entry.gid.ip()));
    let candidates = table.iter().filter(in_range);
    // `max_by_key` returns the last of equal entries; in reverse order that is the table's first.
    let best = candidates.rev().max_by_key(|entry| Merits::of(entry, rules, peer));
    let Some(&entry) = best else {
        return Err(GidError::OutOfRange { there_is: table.to_vec() });
    };
    let merits = Merits::of(&entry, rules, peer);
    let why = merits.why(rules, table.iter().any(|entry| entry.prefix_len.is_some()));
    Ok(ChosenGid { entry, why })
}

/// The criteria that favor a GID, the most important first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Merits {
    version: Fit,
    is_here: bool,
    family: bool,
    is_near_peer: bool,
    is_routed: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Fit {
    No,
    Unknown,
    Yes,
}

impl Merits {
    fn of(entry: &GidEntry, rules: &GidRules, peer: Option<IpAddr>) -> Self {
        let ip = entry.gid.ip();
        Merits {
            version: match entry.roce_version {
                Some(version) if version == rules.roce_version => Fit::Yes,
                Some(_) => Fit::No,
                None => Fit::Unknown,
            },
            is_here: entry.prefix_len.is_some(),
            family: match rules.family {
                AddressFamily::Any => true,
                AddressFamily::Inet => ip.is_ipv4(),
                AddressFamily::Inet6 => ip.is_ipv6(),
            },
            is_near_peer: peer.is_some_and(|peer| entry.shares_subnet(peer)),
            is_routed: match ip {
                IpAddr::V4(v4) => !v4.is_link_local() && !v4.is_unspecified(),
                IpAddr::V6(v6) => !v6.is_unicast_link_local(),
            },
        }
    }

    /// Describes which criteria the GID meets and which it does not.
    fn why(&self, rules: &GidRules, any_is_here: bool) -> String {
        let GidRules { roce_version, family, .. } = rules;
        let family = family.as_str();
        let mut why = vec![match self.version {
            Fit::Yes => format!("RoCE v{roce_version}"),
            Fit::Unknown => "version of RoCE unknown".to_owned(),
            Fit::No => format!("no GID is RoCE v{roce_version}"),
        }];
        why.push(if self.family { family.to_owned() } else { format!("none is {family}") });
        if rules.range.is_some() {
            why.push("in NCCL_IB_ADDR_RANGE".to_owned());
        }
        if self.is_near_peer {
            why.push("in the peer's subnet".to_owned());
        }
        if !self.is_here {
            why.push(if any_is_here {
                "not an address of this network namespace".to_owned()
            } else {
                "none is an address of this network namespace".to_owned()
            });
        }
        if !self.is_routed {
            why.push("link-local".to_owned());
        }
        why.join(", ")
    }
}

#[cfg(test)]
mod tests;
