//! Operations of the send queue that send nothing: binds and invalidations of memory windows.

use super::{Requester, SendWqe};
use crate::roce::qp::ring::QueueRing;
use crate::roce::qp::{Env, Fatal, Path};

impl<const SQ: usize> Requester<SQ> {
    /// Carries out a local operation if it is the next request and all requests before it are done. Returns
    /// whether there was one.
    ///
    /// The standard lets a NIC begin such an operation earlier (IBTA §10.8.3). But a NIC that waits needs
    /// neither to repeat the operation nor to undo it when packets before it are lost.
    pub(super) fn do_local(&mut self, path: &Path, env: &mut impl Env) -> Result<bool, Fatal> {
        let is_next = self.cursor == self.queue.head() && self.cursor_packet == 0;
        let Some(SendWqe { local: Some(_), .. }) = self.queue.front().filter(|_| is_next) else {
            return Ok(false);
        };
        match env.local(QueueRing::<SendWqe, SQ>::slot(self.cursor)) {
            Ok(()) => {
                self.cursor = self.cursor.wrapping_add(1);
                self.finish_front(path, env);
                Ok(true)
            }
            Err(status) => Err(self.fail_front(status, 0, path, env)),
        }
    }
}
