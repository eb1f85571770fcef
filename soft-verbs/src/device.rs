//! Devices: the list, and their attributes.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};
use std::{env, io, mem, process, ptr};

use invar_core::param::AddressFamily;
use invar_core::roce::qp::RD_ATOMIC_MAX;
use invar_linux::interface::InterfaceAddress;
use invar_linux::soft::device::{CQ_DEPTH_MAX, SGES_MAX, SHARED_RECEIVES_MAX, WORK_REQUESTS_MAX};
use invar_linux::soft::{self, HostDevice, SoftConfig, SoftNic};
use invar_verbs::sys::provider::*;
use invar_verbs::sys::{ibv_context, verbs_context};

use crate::events::{EventQueue, Raised};
use crate::object::{self, Kind, Object};
use crate::peers;
use crate::port_watch::PortWatch;
use crate::signals::without_signals;
use crate::{attributes, errno};

versions! {
    "IBVERBS_1.1":
        ibv_free_device_list ibv_get_device_guid ibv_get_device_list ibv_get_device_name ibv_query_device;
    "IBVERBS_1.9":
        ibv_get_device_index;
}

/// The setting that names the devices of the list.
const DEVICES: &str = "INVAR_SOFT_DEVICES";

/// A device. It lives as long as the process, because programs keep pointers.
#[repr(C)]
pub(crate) struct Device {
    base: ibv_device,
    address: SocketAddr,
    /// The other addresses of the interface.
    more_addresses: Vec<SocketAddr>,
    /// Index of the interface's device in the list, which `ibv_get_device_index` returns.
    index: c_int,
    open: Mutex<Open>,
}

// SAFETY: `base` is never written after its creation.
unsafe impl Sync for Device {}
// SAFETY: nothing in it belongs to a thread.
unsafe impl Send for Device {}

/// The NIC of a device, while the device is open.
#[derive(Default)]
struct Open {
    nic: Option<SoftNic>,
    /// The process that opened it. A fork has the memory of its parent's NIC, but not the thread.
    process: u32,
    contexts: usize,
}

/// An open device.
#[repr(C)]
pub(crate) struct Context {
    pub(crate) base: verbs_context,
    pub(crate) device: &'static Device,
    /// The process that opened the context. A child of `fork` has a copy of it.
    pub(crate) process: u32,
    pub(crate) nic: SoftNic,
    pub(crate) events: Arc<EventQueue<Raised>>,
    /// Tells the events of the port, where the kernel lets this process hear of them.
    pub(crate) _port: Option<PortWatch>,
}

// SAFETY: the program's pointer names `context`, at the end of `base`, which is the first field.
unsafe impl Object for Context {
    type Base = ibv_context;
    const KIND: Kind = Kind::Context;
    const OFFSET: usize = mem::offset_of!(Context, base.context);
}

/// Copies text into a field of the header. A text that is too long loses its end.
fn text<const N: usize>(text: &str) -> [c_char; N] {
    let mut field = [0; N];
    for (to, from) in field.iter_mut().zip(text.bytes()).take(N - 1) {
        *to = from as c_char;
    }
    field
}

impl Device {
    fn new(HostDevice { config, interface }: &HostDevice, index: c_int) -> Self {
        // SAFETY: the structure has pointers and integers, for which zero is valid.
        let mut base: ibv_device = unsafe { mem::zeroed() };
        base.node_type = IBV_NODE_CA;
        base.transport_type = IBV_TRANSPORT_IB;
        base.name = text(&config.name);
        base.dev_name = text(&format!("uverbs{index}"));
        base.dev_path = text(&format!("/sys/class/infiniband_verbs/uverbs{index}"));
        base.ibdev_path = text(&format!("/sys/class/infiniband/{}", config.name));
        let addresses = interface.addresses.iter().map(InterfaceAddress::socket_addr);
        let more_addresses = addresses.filter(|address| *address != config.address).collect();
        Device { base, address: config.address, more_addresses, index, open: Mutex::default() }
    }

    fn name(&self) -> &CStr {
        // SAFETY: `text` leaves a NUL at the end.
        unsafe { CStr::from_ptr(self.base.name.as_ptr()) }
    }

    pub(crate) fn ip(&self) -> IpAddr {
        self.address.ip()
    }

    /// A locally administered identifier that depends on the address alone.
    pub(crate) fn guid(&self) -> u64 {
        let bytes: &[u8] = match &self.ip() {
            IpAddr::V4(ip) => &ip.octets(),
            IpAddr::V6(ip) => &ip.octets(),
        };
        // FNV-1a.
        let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        });
        (0x02 << 56 | hash >> 8).to_be()
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens the device: all contexts of a process share a NIC.
    pub(crate) fn open(&self) -> io::Result<SoftNic> {
        let mut open = self.lock();
        let process = process::id();
        if open.process != process {
            // The parent's NIC cannot be closed from here: its thread is in the parent.
            mem::forget(mem::take(&mut *open));
            open.process = process;
        }
        let nic = match &open.nic {
            Some(nic) => nic.clone(),
            None => {
                let name = self.name().to_string_lossy();
                let mut config = SoftConfig::new(name, self.address);
                peers::listen(&mut config)?;
                config.spins_on_memory = true;
                config.waits_for_receives = true;
                config.more_addresses = self.more_addresses.clone();
                let nic = without_signals(|| SoftNic::open(&config))?;
                acknowledge_at_exit();
                open.nic.insert(nic).clone()
            }
        };
        open.contexts += 1;
        Ok(nic)
    }

    /// Notes the end of a context, which the process `opener` opened. A child of `fork` that closes a context of its
    /// parent closes no device: neither its parent's nor its own.
    pub(crate) fn close(&self, opener: u32) {
        let mut open = self.lock();
        if [opener, open.process] == [process::id(); 2] {
            open.contexts = open.contexts.saturating_sub(1);
            // A program may exit without destroying its queue pairs.
            if open.contexts == 0
                && let Some(nic) = open.nic.take()
            {
                nic.try_flush();
            }
        }
    }
}

/// All devices that a program has seen.
static KNOWN: Mutex<Vec<&'static Device>> = Mutex::new(Vec::new());

/// Sends the acknowledges that are due when the process exits, since hardware would. The peer of a program that exits
/// right after its last completion would otherwise call a host at which nobody answers.
fn acknowledge_at_exit() {
    extern "C" fn acknowledge() {
        // Another thread, or the call that a signal has interrupted, may hold a lock.
        let Ok(known) = KNOWN.try_lock() else { return };
        for device in &*known {
            if let Ok(Open { nic: Some(nic), process, .. }) = device.open.try_lock().as_deref()
                && *process == process::id()
            {
                nic.try_flush();
            }
        }
    }
    static ONCE: Once = Once::new();
    // SAFETY: the function does not unwind, and the library stays loaded.
    ONCE.call_once(|| _ = unsafe { libc::atexit(acknowledge) });
}

/// The devices that exist now, each under the address that it had before.
fn devices() -> io::Result<Vec<&'static Device>> {
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let found = soft::devices(AddressFamily::Any)?;
    let number = |name: &str| found.iter().position(|one| one.config.name == name);
    let chosen = chosen(found.clone());
    let devices = chosen.iter().map(|one| {
        // The list may have another order, but a device keeps its number.
        let index = number(&one.config.name).unwrap_or_default() as c_int;
        let device = Device::new(one, index);
        let same = |other: &&&Device| {
            other.address == device.address
                && other.more_addresses == device.more_addresses
                && other.base.name == device.base.name
        };
        if let Some(device) = known.iter().find(same) {
            return *device;
        }
        let device: &'static Device = Box::leak(Box::new(device));
        known.push(device);
        device
    });
    Ok(devices.collect())
}

/// The devices that `INVAR_SOFT_DEVICES` names: none if a name is wrong, as if the host had no device.
fn chosen(found: Vec<HostDevice>) -> Vec<HostDevice> {
    let list = env::var_os(DEVICES).unwrap_or_default();
    soft::choose(found, &list.to_string_lossy()).unwrap_or_else(|unknown| {
        errno::tell(format_args!("{DEVICES}: {unknown}"));
        Vec::new()
    })
}

/// The device that a pointer names.
///
/// # Safety
/// The pointer is one of a device list.
pub(crate) unsafe fn device(device: *mut ibv_device) -> &'static Device {
    // SAFETY: every device of a list is a `Device` and lives as long as the process.
    unsafe { &*device.cast::<Device>() }
}

#[unsafe(no_mangle)]
extern "C" fn ibv_get_device_list(count: *mut c_int) -> *mut *mut ibv_device {
    if !count.is_null() {
        // SAFETY: the caller gives null or a place for the number.
        unsafe { count.write(0) };
    }
    let devices = match devices() {
        Ok(devices) => devices,
        Err(error) => return errno::null(error.raw_os_error().unwrap_or(libc::EIO)),
    };
    // SAFETY: the call has no preconditions; it returns zeroed memory or null.
    let list = unsafe { libc::calloc(devices.len() + 1, size_of::<*mut ibv_device>()) };
    let list = list.cast::<*mut ibv_device>();
    if list.is_null() {
        return errno::null(libc::ENOMEM);
    }
    for (at, device) in devices.iter().enumerate() {
        // SAFETY: the list has room for all devices and a null.
        unsafe { list.add(at).write(ptr::from_ref(*device).cast_mut().cast()) };
    }
    if !count.is_null() {
        // SAFETY: the caller gives null or a place for the number.
        unsafe { count.write(devices.len() as c_int) };
    }
    list
}

#[unsafe(no_mangle)]
extern "C" fn ibv_free_device_list(list: *mut *mut ibv_device) {
    // SAFETY: `ibv_get_device_list` allocated the list by `calloc`.
    unsafe { libc::free(list.cast()) };
}

#[unsafe(no_mangle)]
extern "C" fn ibv_get_device_name(of: *mut ibv_device) -> *const c_char {
    // SAFETY: the caller gives a device of the list.
    unsafe { device(of) }.base.name.as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn ibv_get_device_index(of: *mut ibv_device) -> c_int {
    // SAFETY: the caller gives a device of the list.
    unsafe { device(of) }.index
}

#[unsafe(no_mangle)]
extern "C" fn ibv_get_device_guid(of: *mut ibv_device) -> u64 {
    // SAFETY: the caller gives a device of the list.
    unsafe { device(of) }.guid()
}

fn attributes_of(device: &Device) -> ibv_device_attr {
    let queue_pairs = 1 << 13;
    // SAFETY: the structure has integers alone, for which zero is valid.
    let mut attr: ibv_device_attr = unsafe { mem::zeroed() };
    attr.fw_ver = text(env!("CARGO_PKG_VERSION"));
    attr.node_guid = device.guid();
    attr.sys_image_guid = device.guid();
    attr.max_mr_size = isize::MAX as u64;
    attr.page_size_cap = 0xffff_f000;
    // No vendor has this number, which rdma_rxe gives too.
    attr.vendor_id = 0xff_ffff;
    attr.max_qp = queue_pairs;
    attr.max_qp_wr = WORK_REQUESTS_MAX as c_int;
    attr.device_cap_flags =
        IBV_DEVICE_CURR_QP_STATE_MOD | IBV_DEVICE_SYS_IMAGE_GUID | IBV_DEVICE_RC_RNR_NAK_GEN;
    attr.device_cap_flags |=
        IBV_DEVICE_MEM_WINDOW | IBV_DEVICE_MEM_WINDOW_TYPE_2B | IBV_DEVICE_MEM_MGT_EXTENSIONS;
    attr.max_sge = SGES_MAX as c_int;
    attr.max_sge_rd = SGES_MAX as c_int;
    attr.max_cq = 1 << 20;
    attr.max_cqe = CQ_DEPTH_MAX as c_int;
    attr.max_mr = soft::device::REGIONS_MAX as c_int;
    attr.max_mw = soft::device::WINDOWS_MAX as c_int;
    attr.max_pd = 1 << 20;
    attr.max_qp_rd_atom = RD_ATOMIC_MAX.into();
    attr.max_qp_init_rd_atom = RD_ATOMIC_MAX.into();
    attr.max_res_rd_atom = queue_pairs * c_int::from(RD_ATOMIC_MAX);
    attr.max_ah = 1 << 20;
    attr.max_srq = queue_pairs;
    attr.max_srq_wr = SHARED_RECEIVES_MAX as c_int;
    attr.max_srq_sge = SGES_MAX as c_int;
    attr.atomic_cap = IBV_ATOMIC_GLOB;
    attr.max_pkeys = 1;
    attr.local_ca_ack_delay = 15;
    attr.phys_port_cnt = 1;
    attr
}

#[unsafe(no_mangle)]
extern "C" fn ibv_query_device(context: *mut ibv_context, attr: *mut ibv_device_attr) -> c_int {
    errno::status(object::get::<Context>(context).map(|context| {
        // SAFETY: the caller gives a place for the attributes.
        unsafe { attr.write(attributes_of(context.device)) };
    }))
}

pub(crate) unsafe extern "C" fn query_device_ex(
    context: *mut ibv_context,
    _: *const c_void,
    attr: *mut ibv_device_attr_ex,
    size: usize,
) -> c_int {
    let Ok(context) = object::get::<Context>(context) else { return libc::EINVAL };
    if size < size_of::<ibv_device_attr>() {
        return libc::EINVAL;
    }
    // SAFETY: the structure has integers alone, for which zero is valid.
    let mut known: ibv_device_attr_ex = unsafe { mem::zeroed() };
    known.orig_attr = attributes_of(context.device);
    known.phys_port_cnt_ex = 1;
    // SAFETY: the caller gives room for `size` bytes.
    unsafe { attributes::write(attr, size, &known) };
    0
}
