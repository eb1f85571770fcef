//! Settings of communicators and their proxies.

use std::path::Path;
use std::time::Duration;

use super::milliseconds;
use crate::Settings;

/// Settings of communicators.
impl Settings {
    /// Sets whether ranks of one host exchange data through shared memory (`NCCL_SHM_DISABLE`).
    pub fn shared_memory(self, on: bool) -> Self {
        self.flag("NCCL_SHM_DISABLE", !on)
    }

    /// Sets whether the plugin offers NCCL's CollNet (`NCCL_COLLNET_ENABLE`).
    pub fn collnet(self, on: bool) -> Self {
        self.flag("NCCL_COLLNET_ENABLE", on)
    }

    /// Sets the device over which a communicator reaches ranks that share no memory with it. The name
    /// is as [`Device::open`](crate::Device::open) takes it: one of `invar devices`, or several of
    /// them as in `mlx5_0+mlx5_1`. By default a communicator uses every RDMA device with a link.
    /// Without RDMA devices it uses the software NIC, or TCP, on the interface towards the rendezvous.
    pub fn communicator_nic(mut self, name: &str) -> Self {
        self.coll_nic = Some(name.to_owned());
        self
    }

    /// Sets the length of the chunks in which a message goes from one rank to another
    /// (`NCCL_CHUNK_SIZE`); 0 means the longest chunk, which is a slot unless dozens of ranks share
    /// memory. All ranks need the same length.
    pub fn message_chunk_bytes(self, bytes: usize) -> Self {
        self.with("NCCL_CHUNK_SIZE", bytes)
    }

    /// Sets the time that a rank in a collective waits for another rank that does not do its part, in whole
    /// milliseconds (`INVAR_COLL_TIMEOUT_MS`).
    pub fn collective_timeout(self, timeout: Duration) -> Self {
        self.with("INVAR_COLL_TIMEOUT_MS", milliseconds(timeout))
    }

    /// Sets the word that lets ranks of a launcher's job in, the same at all ranks (`INVAR_COLL_SECRET`).
    pub fn coll_secret(self, word: &str) -> Self {
        self.with("INVAR_COLL_SECRET", word)
    }

    /// Sets the number of operations that a proxy's progress thread takes over at a time
    /// (`NCCL_PROXY_APPEND_BATCH_SIZE`), for a program that follows [`Settings::append_batch`].
    pub fn proxy_batch(self, operations: usize) -> Self {
        self.with("NCCL_PROXY_APPEND_BATCH_SIZE", operations)
    }

    /// Sets the number of rounds between two looks of a proxy's progress thread for new operations
    /// (`NCCL_PROGRESS_APPENDOP_FREQ`), for a program that follows [`Settings::append_every`].
    pub fn proxy_rounds(self, rounds: usize) -> Self {
        self.with("NCCL_PROGRESS_APPENDOP_FREQ", rounds)
    }

    /// Sets the file into which each rank writes a trace of its links (`INVAR_PROXY_TRACE`), an absolute
    /// path; `%c` stands for the communicator and `%r` for the rank. A program with a proxy follows
    /// [`Settings::trace_file`].
    pub fn proxy_trace(self, file: &Path) -> Self {
        self.with("INVAR_PROXY_TRACE", file.display())
    }

    /// Sets the signal on which ranks print their pending operations, 1 to 64
    /// (`NCCL_PROXY_DUMP_SIGNAL`).
    pub fn dump_on_signal(self, signal: u8) -> Self {
        self.with("NCCL_PROXY_DUMP_SIGNAL", signal)
    }
}
