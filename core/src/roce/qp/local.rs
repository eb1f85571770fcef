//! Operations of the send queue that send nothing.

use super::{Env, Qp, SendWqe};
use crate::nic::{LocalOp, NicError, SendFlags};

impl<const SQ: usize, const RQ: usize> Qp<SQ, RQ> {
    /// Posts an operation that sends nothing. The operation begins when all requests before it are done, and
    /// requests behind it wait for it. The function returns the slot in which the adapter keeps the
    /// operation, for [`Env::local`].
    ///
    /// # Errors
    /// The errors of [`Qp::post_send`].
    pub fn post_local(
        &mut self,
        wr_id: u64,
        flags: SendFlags,
        operation: LocalOp,
        env: &mut impl Env,
    ) -> Result<u16, NicError> {
        self.post_send_work(SendWqe::local(wr_id, flags, operation), env)
    }
}
