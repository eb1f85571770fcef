//! The end of NCCL's contexts, of the network's and of collNet's alike.

use std::ffi::c_void;

use crate::abi::Code;
use crate::outcome::call;
use crate::{collnet, connect, host};

/// `finalize`. The last one drops all connection attempts and listening comms, of the network and of collNet.
pub(crate) unsafe extern "C" fn finalize(context: *mut c_void) -> Code {
    call(|| {
        host::end_context(context, || {
            connect::abandon();
            collnet::abandon();
        })
    })
}
