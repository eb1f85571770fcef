//! Steps and chunks of a point-to-point transfer.
//!
//! The buffer between a GPU and the network is a ring of [`STEPS`] slots. A transfer passes through the
//! ring in steps, and each step carries a chunk. In point-to-point transfers a chunk is one slice.
//! Collectives have several steps in a slice, and several slices in a chunk. Small transfers have
//! smaller chunks, so that the network starts before the GPU has copied all data.

use core::num::NonZeroU32;

/// Number of slots of the ring between GPU and network (`NCCL_STEPS`).
pub const STEPS: u32 = 8;

/// The protocol of NCCL that a transfer uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// 8-byte words, half of each a flag.
    Ll,
    /// Lines of 128 bytes, 8 of them a flag.
    Ll128,
    /// Plain bytes, without flags among them.
    Simple,
}

impl Protocol {
    /// Bytes of a step. The simple protocol uses the configured size (`p2pChunkSize`); the others use a
    /// slot of their protocol's buffer.
    pub const fn step_bytes(self, buffer_bytes: u32, p2p_chunk_bytes: u32) -> u32 {
        match self {
            Protocol::Simple => p2p_chunk_bytes,
            Protocol::Ll | Protocol::Ll128 => buffer_bytes / STEPS,
        }
    }
}

/// A transfer to divide into steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct P2pTransfer {
    /// Bytes of the whole transfer.
    pub bytes: u64,
    /// Protocol of the transfer.
    pub protocol: Protocol,
    /// Bytes of a step; see [`Protocol::step_bytes`].
    pub step_bytes: NonZeroU32,
    /// Whether the transfer goes over the network.
    pub network: bool,
    /// `NCCL_CHUNK_SIZE`, which overrides the computed size.
    pub chunk_bytes: Option<NonZeroU32>,
}

/// The steps and chunks of a transfer (`proxy.cc ncclProxyComputeP2p`). A slice and a chunk have one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct P2pSteps {
    /// Bytes of a chunk, flags included.
    pub chunk_bytes: u32,
    /// Bytes of the transfer that a chunk carries.
    pub payload_bytes: u32,
    /// Number of steps in all; one for an empty transfer.
    pub nsteps: u64,
}

impl P2pTransfer {
    /// Computes steps and chunks.
    ///
    /// A chunk has at least one byte. NCCL would divide by zero for steps of fewer than 4 bytes.
    pub fn steps(&self) -> P2pSteps {
        let step_bytes = self.step_bytes.get();
        let step = u64::from(step_bytes);
        let tuned = match self.bytes {
            bytes if self.network && bytes < step => step_bytes / 4,
            bytes if self.network && bytes < 8 * step => step_bytes / 2,
            _ => step_bytes,
        };
        let chunk_bytes = self.chunk_bytes.map_or(tuned, NonZeroU32::get).max(1);
        let payload_bytes = match self.protocol {
            Protocol::Ll => (chunk_bytes / 2).max(1),
            Protocol::Ll128 | Protocol::Simple => chunk_bytes,
        };
        let nsteps = self.bytes.div_ceil(u64::from(payload_bytes)).max(1);
        P2pSteps { chunk_bytes, payload_bytes, nsteps }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const STEP: u32 = 128 << 10;

    fn simple(bytes: u64, network: bool) -> P2pTransfer {
        let step_bytes = NonZeroU32::new(STEP).unwrap();
        P2pTransfer { bytes, protocol: Protocol::Simple, step_bytes, network, chunk_bytes: None }
    }

    #[test]
    fn chunks_grow_with_the_transfer_on_the_network_only() {
        let step = u64::from(STEP);
        for (bytes, network, chunk, nsteps) in [
            (0, true, STEP / 4, 1),
            (1, true, STEP / 4, 1),
            (step - 1, true, STEP / 4, 4),
            (step, true, STEP / 2, 2),
            (8 * step - 1, true, STEP / 2, 16),
            (8 * step, true, STEP, 8),
            (8 * step + 1, true, STEP, 9),
            (1, false, STEP, 1),
            (step + 1, false, STEP, 2),
        ] {
            let steps = simple(bytes, network).steps();
            assert_eq!((steps.chunk_bytes, steps.nsteps), (chunk, nsteps), "{bytes} {network}");
            assert_eq!(steps.payload_bytes, chunk);
        }
    }

    #[test]
    fn half_of_an_ll_chunk_is_flags() {
        let step_bytes = Protocol::Ll.step_bytes(1 << 19, STEP);
        assert_eq!(step_bytes, 1 << 16);
        let step_bytes = NonZeroU32::new(step_bytes).unwrap();
        let steps = P2pTransfer { protocol: Protocol::Ll, step_bytes, ..simple(100_000, false) };
        let steps = steps.steps();
        assert_eq!((steps.chunk_bytes, steps.payload_bytes, steps.nsteps), (1 << 16, 1 << 15, 4));
        assert_eq!(Protocol::Simple.step_bytes(1 << 22, STEP), STEP);
    }

    #[test]
    fn a_set_chunk_size_overrides() {
        let transfer = P2pTransfer { chunk_bytes: NonZeroU32::new(1000), ..simple(4500, true) };
        let steps = transfer.steps();
        assert_eq!((steps.chunk_bytes, steps.nsteps), (1000, 5));
    }

    proptest! {
        #[test]
        fn the_steps_carry_the_whole_transfer_and_no_step_is_idle(
            bytes: u64,
            step_bytes in 1..u32::MAX,
            network: bool,
            protocol in prop::sample::select(&[Protocol::Ll, Protocol::Ll128, Protocol::Simple]),
            chunk_bytes: u32,
        ) {
            let step_bytes = NonZeroU32::new(step_bytes).unwrap();
            let chunk_bytes = NonZeroU32::new(chunk_bytes);
            let transfer = P2pTransfer { bytes, protocol, step_bytes, network, chunk_bytes };
            let steps = transfer.steps();
            let payload = u128::from(steps.payload_bytes);
            let (nsteps, bytes) = (u128::from(steps.nsteps), u128::from(bytes));
            prop_assert!(nsteps * payload >= bytes);
            prop_assert!(nsteps == 1 || (nsteps - 1) * payload < bytes);
        }
    }
}
