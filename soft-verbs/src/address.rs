//! Address handles: the receivers of datagrams.

use std::ffi::c_int;
use std::mem;
use std::net::IpAddr;
use std::sync::Arc;

use invar_core::nic::{AddressVector, Gid};
use invar_core::roce::qp::GRH_BYTES;
use invar_linux::soft::{self, SoftNic};
use invar_verbs::sys::provider::{ibv_ah, ibv_grh, ibv_pd};
use invar_verbs::sys::{ibv_ah_attr, ibv_context, ibv_gid, ibv_wc};

use crate::device::Context;
use crate::errno;
use crate::memory::Pd;
use crate::object::{self, Kind, Object};

versions! {
    "IBVERBS_1.1":
        ibv_create_ah ibv_create_ah_from_wc ibv_destroy_ah ibv_init_ah_from_wc;
}

/// An address handle.
#[repr(C)]
pub(crate) struct Ah {
    base: ibv_ah,
    /// The address. The queue pair number of a work request adds the UDP port.
    pub(crate) address: AddressVector,
    _domain: Arc<soft::Pd>,
}

// SAFETY: `base` is the first field.
unsafe impl Object for Ah {
    type Base = ibv_ah;
    const KIND: Kind = Kind::Ah;
}

/// Converts an address of the verbs, without a UDP port. The device has `gids` GIDs.
///
/// # Errors
/// `EINVAL`: the address has no GID, or names a port or a GID that the device does not have.
pub(crate) fn vector(attr: &ibv_ah_attr, gids: usize) -> Result<AddressVector, c_int> {
    let ibv_ah_attr { grh, is_global, port_num, sl, .. } = *attr;
    if is_global == 0 || port_num != 1 || usize::from(grh.sgid_index) >= gids {
        return Err(libc::EINVAL);
    }
    Ok(AddressVector {
        is_global: true,
        dgid: Gid(grh.dgid.raw),
        sgid_index: grh.sgid_index,
        hop_limit: grh.hop_limit,
        traffic_class: grh.traffic_class,
        dlid: 0,
        sl,
        port_num: 1,
        udp_port: 0,
        udp_source_port: 0,
    })
}

#[unsafe(no_mangle)]
extern "C" fn ibv_create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah {
    // SAFETY: the caller gives valid attributes.
    create(pd, unsafe { &*attr }).unwrap_or_else(errno::null)
}

fn create(pd: *mut ibv_pd, attr: &ibv_ah_attr) -> Result<*mut ibv_ah, c_int> {
    let domain = object::get::<Pd>(pd)?;
    let address = vector(attr, domain.nic.gids().len())?;
    domain.nic.check_address(&address).map_err(errno::of)?;
    let base = ibv_ah { context: domain.context(), pd: pd.cast(), handle: 0 };
    Ok(object::give(Ah { base, address, _domain: Arc::clone(&domain.domain) }))
}

#[unsafe(no_mangle)]
extern "C" fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int {
    errno::status(object::take::<Ah>(ah, |_| Ok(())).map(drop))
}

/// Makes an address handle for the sender of a datagram that arrived.
#[unsafe(no_mangle)]
extern "C" fn ibv_create_ah_from_wc(
    pd: *mut ibv_pd,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    port_num: u8,
) -> *mut ibv_ah {
    let made = object::get::<Pd>(pd).and_then(|domain| {
        // SAFETY: the caller gives a completion, and a header if the completion says so.
        let attr = unsafe { sender(&domain.nic, port_num, &*wc, grh) }?;
        create(pd, &attr)
    });
    made.unwrap_or_else(errno::null)
}

/// Writes the address of the sender of a datagram that arrived.
#[unsafe(no_mangle)]
extern "C" fn ibv_init_ah_from_wc(
    context: *mut ibv_context,
    port_num: u8,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    attr: *mut ibv_ah_attr,
) -> c_int {
    let sender = object::get::<Context>(context).and_then(|context| {
        // SAFETY: the caller gives a completion, and a header if the completion says so.
        unsafe { sender(&context.nic, port_num, &*wc, grh) }
    });
    // SAFETY: the caller gives a place for the address.
    errno::or_minus_one(sender.map(|sender| unsafe { attr.write(sender) }))
}

/// The address of the sender of a datagram.
///
/// # Safety
/// `grh` is a header in front of a datagram, if the completion has one.
unsafe fn sender(
    nic: &SoftNic,
    port_num: u8,
    wc: &ibv_wc,
    grh: *const ibv_grh,
) -> Result<ibv_ah_attr, c_int> {
    if port_num != 1 || grh.is_null() || !wc.flags.contains(invar_core::nic::WcFlags::GRH) {
        return Err(libc::EINVAL);
    }
    // SAFETY: the caller vouches for the header, which has integers alone. Programs may put it at any
    // address.
    let header: [u8; GRH_BYTES] = unsafe { grh.cast::<[u8; GRH_BYTES]>().read_unaligned() };
    let Header { from, to, hop_limit, traffic_class } =
        Header::parse(&header).ok_or(libc::EPROTONOSUPPORT)?;
    let sgid_index = nic.gids().iter().position(|gid| *gid == to).ok_or(libc::EINVAL)?;
    // SAFETY: the structure has integers alone, for which zero is valid.
    let mut attr: ibv_ah_attr = unsafe { mem::zeroed() };
    attr.grh.sgid_index = sgid_index as u8;
    attr.grh.dgid = ibv_gid { raw: from.0 };
    (attr.grh.hop_limit, attr.grh.traffic_class) = (hop_limit, traffic_class);
    (attr.is_global, attr.port_num) = (1, port_num);
    // `wc.sl` says what headers the packet had.
    (attr.dlid, attr.src_path_bits) = (wc.slid, wc.dlid_path_bits);
    Ok(attr)
}

/// The parts of a global route header that name its sender.
#[derive(Debug, PartialEq, Eq)]
struct Header {
    from: Gid,
    to: Gid,
    hop_limit: u8,
    traffic_class: u8,
}

impl Header {
    /// Reads an IPv6 header, or an IPv4 header in the last 20 bytes.
    fn parse(bytes: &[u8; GRH_BYTES]) -> Option<Header> {
        let (v6, v4) = (bytes, bytes.last_chunk::<20>()?);
        if v6[0] >> 4 == 6 {
            let (from, to) = (v6[8..].first_chunk()?, v6[24..].first_chunk()?);
            let traffic_class = v6[0] << 4 | v6[1] >> 4;
            return Some(Header {
                from: Gid(*from),
                to: Gid(*to),
                hop_limit: v6[7],
                traffic_class,
            });
        }
        let gid = |address: &[u8; 4]| Gid::from(IpAddr::from(*address));
        let (from, to) = (v4[12..].first_chunk()?, v4[16..].first_chunk()?);
        (v4[0] == 0x45).then(|| Header {
            from: gid(from),
            to: gid(to),
            hop_limit: v4[8],
            traffic_class: v4[1],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_of_both_ip_versions_name_their_sender() {
        let mut bytes = [0; GRH_BYTES];
        assert_eq!(Header::parse(&bytes), None);
        bytes[20] = 0x45;
        bytes[21] = 3;
        bytes[28] = 64;
        bytes[32..40].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
        let header = Header::parse(&bytes).unwrap();
        assert_eq!(
            [header.from.ip(), header.to.ip()].map(|ip| ip.to_string()),
            ["10.0.0.1", "10.0.0.2"]
        );
        assert_eq!((header.hop_limit, header.traffic_class), (64, 3));
        let mut bytes = [7; GRH_BYTES];
        (bytes[0], bytes[1], bytes[7]) = (0x61, 0x20, 9);
        bytes[24..40].fill(8);
        let header = Header::parse(&bytes).unwrap();
        assert_eq!((header.from, header.to), (Gid([7; 16]), Gid([8; 16])));
        assert_eq!((header.hop_limit, header.traffic_class), (9, 0x12));
    }
}
