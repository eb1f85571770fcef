extern crate std;

use proptest::prelude::*;

use super::*;

const STEP: u32 = 512 << 10;

fn n(n: u32) -> NonZeroU32 {
    NonZeroU32::new(n).unwrap()
}

fn all_reduce(algorithm: ProxyAlgorithm, protocol: Protocol, bytes: u64) -> CollTransfer {
    CollTransfer {
        collective: Collective::AllReduce,
        algorithm,
        protocol,
        bytes,
        step_bytes: n(STEP),
        nchannels: n(2),
        nranks: n(4),
        nnodes: n(2),
        depth: 2,
        nheads: n(2),
    }
}

#[test]
fn a_ring_moves_chunks_of_four_steps_in_slices_of_two() {
    let steps = all_reduce(ProxyAlgorithm::Ring, Protocol::Simple, 100 << 20).steps().unwrap();
    assert_eq!((steps.slice_steps, steps.chunk_steps), (2, 4));
    assert_eq!((steps.chunk_bytes, steps.slice_bytes), (4 * STEP, 2 * u64::from(STEP)));
    // A loop moves 2 channels × 4 ranks × 2 MiB and takes 2 × 3 steps of the ring, so there are 7
    // loops.
    assert_eq!((steps.pattern, steps.nsteps), (Pattern::RingTwice, 7 * 6 * 4));

    let gather = CollTransfer {
        collective: Collective::AllGather,
        ..all_reduce(ProxyAlgorithm::Ring, Protocol::Simple, 100 << 20)
    };
    assert_eq!(gather.steps().unwrap().nsteps, 7 * 3 * 4);
}

#[test]
fn a_broadcast_moves_one_step_at_a_time() {
    let ring = all_reduce(ProxyAlgorithm::Ring, Protocol::Simple, 3 << 20);
    let steps = CollTransfer { collective: Collective::Broadcast, ..ring }.steps().unwrap();
    assert_eq!((steps.slice_steps, steps.chunk_steps, steps.chunk_bytes), (1, 1, STEP));
    assert_eq!((steps.pattern, steps.nsteps), (Pattern::PipelineFrom, 3));
}

#[test]
fn flags_take_half_of_an_ll_chunk_and_a_sixteenth_of_an_ll128_chunk() {
    let steps = all_reduce(ProxyAlgorithm::Ring, Protocol::Ll, 100 << 20).steps().unwrap();
    assert_eq!((steps.slice_steps, steps.chunk_steps), (1, 1));
    assert_eq!((steps.chunk_bytes, steps.payload_bytes), (STEP, STEP / 2));
    assert_eq!(steps.nsteps, (100_u64 << 20).div_ceil(8 * (256 << 10)) * 6);
    let steps = all_reduce(ProxyAlgorithm::Ring, Protocol::Ll128, 100 << 20).steps().unwrap();
    assert_eq!(steps.nsteps, (100_u64 << 20).div_ceil(8 * (480 << 10)) * 6);
}

#[test]
fn little_data_is_cut_smaller_the_deeper_its_way() {
    for (algorithm, protocol, bytes, chunk) in [
        (ProxyAlgorithm::Tree, Protocol::Simple, 1 << 30, STEP),
        // The tree wants 16 chunks a channel: 32 × 512 KiB.
        (ProxyAlgorithm::Tree, Protocol::Simple, 16 << 20, STEP),
        (ProxyAlgorithm::Tree, Protocol::Simple, (16 << 20) - 1, STEP / 2),
        (ProxyAlgorithm::Tree, Protocol::Simple, 1 << 20, 64 << 10),
        (ProxyAlgorithm::Tree, Protocol::Simple, 1, 32 << 10),
        (ProxyAlgorithm::CollnetDirect, Protocol::Simple, 1 << 30, STEP),
        (ProxyAlgorithm::CollnetDirect, Protocol::Simple, (256 << 20) - 1, STEP / 2),
        (ProxyAlgorithm::CollnetDirect, Protocol::Simple, 4 << 20, 64 << 10),
        (ProxyAlgorithm::CollnetDirect, Protocol::Simple, 1, 32 << 10),
        (ProxyAlgorithm::CollnetChain, Protocol::Simple, 1 << 30, 256 << 10),
        (ProxyAlgorithm::CollnetChain, Protocol::Simple, (64 << 20) - 1, 128 << 10),
        (ProxyAlgorithm::CollnetChain, Protocol::Simple, 1, 32 << 10),
        // The tree wants 64 × (1 + 1 + 0.2) / 2 = 70.4 chunks a channel.
        (ProxyAlgorithm::Tree, Protocol::Ll128, 71 << 20, STEP),
        (ProxyAlgorithm::Tree, Protocol::Ll128, 70 << 20, STEP / 2),
        (ProxyAlgorithm::Tree, Protocol::Ll128, 1, 32 << 10),
        (ProxyAlgorithm::Tree, Protocol::Ll, 1, STEP),
    ] {
        let steps = all_reduce(algorithm, protocol, bytes).steps().unwrap();
        assert_eq!(steps.chunk_bytes, chunk, "{algorithm:?} {protocol:?} {bytes}");
    }
}

#[test]
fn what_nccl_does_not_do_has_no_steps() {
    for (collective, algorithm) in [
        (Collective::AllGather, ProxyAlgorithm::Tree),
        (Collective::ReduceScatter, ProxyAlgorithm::CollnetDirect),
        (Collective::Broadcast, ProxyAlgorithm::CollnetChain),
        (Collective::Reduce, ProxyAlgorithm::CollnetDirect),
    ] {
        let transfer = all_reduce(algorithm, Protocol::Simple, 1);
        assert_eq!(CollTransfer { collective, ..transfer }.steps(), None);
    }
}

/// Computes the chunk as NCCL does, by whole divisions and single precision.
fn chunk_by_division(transfer: &CollTransfer) -> u64 {
    let step = u64::from(transfer.step_bytes.get());
    let (bytes, nchannels) = (transfer.bytes, u64::from(transfer.nchannels.get()));
    let (depth, nheads) = (u64::from(transfer.depth), u64::from(transfer.nheads.get()));
    let halve = |mut chunk: u64, floor: u64, heads: u64, wanted: f32| {
        while ((bytes / (nchannels * heads * chunk)) as f32) < wanted && chunk > floor {
            chunk /= 2;
        }
        chunk
    };
    let (kib, d) = (|n: u64| n << 10, depth as f32);
    match transfer.algorithm {
        ProxyAlgorithm::Ring => 4 * step,
        ProxyAlgorithm::Tree => {
            let chunk = halve(step, kib(128), 1, d * 8.0);
            halve(halve(chunk, kib(64), 1, d * 4.0), kib(32), 1, d)
        }
        ProxyAlgorithm::CollnetDirect => {
            let chunk = halve(step, kib(128), nheads, d * 64.0);
            halve(halve(chunk, kib(64), nheads, d * 8.0), kib(32), nheads, d * 8.0)
        }
        ProxyAlgorithm::CollnetChain => {
            let chunk = halve(step.min(kib(256)), kib(128), 1, d * 64.0);
            halve(halve(chunk, kib(64), 1, d * 8.0), kib(32), 1, d)
        }
    }
}

proptest! {
    #[test]
    fn chunks_are_those_of_nccl(
        algorithm in prop::sample::select(&[
            ProxyAlgorithm::Tree, ProxyAlgorithm::Ring, ProxyAlgorithm::CollnetDirect, ProxyAlgorithm::CollnetChain,
        ]),
        // Single precision represents quotients up to 2^24 exactly.
        bytes in 0u64..1 << 36,
        step_shift in 10u32..23,
        counts in (1u32..33, 1u32..9, 0u32..12),
    ) {
        let (nchannels, nheads, depth) = counts;
        let transfer = CollTransfer {
            step_bytes: n(1 << step_shift),
            nchannels: n(nchannels),
            nheads: n(nheads),
            depth,
            ..all_reduce(algorithm, Protocol::Simple, bytes)
        };
        let steps = transfer.steps().unwrap();
        prop_assert_eq!(u64::from(steps.chunk_bytes), chunk_by_division(&transfer));
    }

    #[test]
    fn the_turns_carry_all_of_the_data_and_none_is_idle(
        bytes: u64,
        step_bytes in 1u32..1 << 30,
        counts in (1u32..65, 1u32..100_000),
        protocol in prop::sample::select(&[Protocol::Ll, Protocol::Ll128, Protocol::Simple]),
    ) {
        let (nchannels, nranks) = counts;
        let transfer = CollTransfer {
            step_bytes: n(step_bytes),
            nchannels: n(nchannels),
            nranks: n(nranks + 1),
            ..all_reduce(ProxyAlgorithm::Ring, protocol, bytes)
        };
        if let Some(steps) = transfer.steps() {
            let payload = u128::from(steps.payload_bytes.max(1));
            let turn = u128::from(nchannels) * u128::from(nranks + 1) * payload;
            let turns = u128::from(steps.nsteps / (2 * u64::from(nranks * steps.chunk_steps)));
            prop_assert!(turns * turn >= u128::from(bytes));
            prop_assert!(turns == 0 || (turns - 1) * turn < u128::from(bytes));
            prop_assert_eq!(steps.nsteps % u64::from(steps.chunk_steps), 0);
        }
    }
}
