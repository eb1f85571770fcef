//! `libnccl-net-unix.so`: Invar's network plugin of NCCL, with the NIC of this example.
//!
//! The library exports the function tables of Invar's plugin, in which NCCL finds the NIC as device
//! `unix0`. The NIC is provided when the library is loaded, before NCCL makes its first call.

pub use nccl_net_invar::tables;

// SAFETY: The loader calls each function of this section once, with arguments that `provide` ignores.
#[unsafe(link_section = ".init_array")]
#[used]
static PROVIDE: extern "C" fn() = provide;

extern "C" fn provide() {
    unix_nic::provide();
}
