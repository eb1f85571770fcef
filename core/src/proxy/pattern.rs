//! Patterns say how data travels between ranks, and with which peers a rank needs a proxy.

use crate::topology::{Direction, Ring, TREE_ARITY_MAX, Tree};

/// The largest number of legs of a pattern. A pattern that goes up and down a tree has so many.
pub const LEGS_MAX: usize = 2 * (TREE_ARITY_MAX + 1);

/// A pattern by which data travels between ranks (`ncclPattern_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Pattern {
    /// The data goes once around the ring: all-gather, reduce-scatter.
    Ring,
    /// The data goes twice around the ring: all-reduce.
    RingTwice,
    /// The data goes along the ring from the root: broadcast.
    PipelineFrom,
    /// The data goes along the ring to the root: reduce.
    PipelineTo,
    /// The data goes up the tree: reduce.
    TreeUp,
    /// The data goes down the tree: broadcast.
    TreeDown,
    /// The data goes up the tree and down again: all-reduce.
    TreeUpDown,
    /// The data goes through the switch, from the last rank of a chain within the host.
    CollnetChain,
    /// The data goes through the switch, from the rank that heads the host.
    CollnetDirect,
    /// The data goes to one peer.
    Send,
    /// The data comes from one peer.
    Recv,
}

impl Pattern {
    /// All patterns, in the order of their codes.
    pub const ALL: [Pattern; 11] = [
        Pattern::Ring,
        Pattern::RingTwice,
        Pattern::PipelineFrom,
        Pattern::PipelineTo,
        Pattern::TreeUp,
        Pattern::TreeDown,
        Pattern::TreeUpDown,
        Pattern::CollnetChain,
        Pattern::CollnetDirect,
        Pattern::Send,
        Pattern::Recv,
    ];
}

/// The peers that a rank's channel connects it with (`ncclChannel`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Channel {
    /// The rank itself.
    pub rank: u32,
    /// The rank's neighbours on the ring.
    pub ring: Ring,
    /// The rank's neighbours in the tree.
    pub tree: Tree,
    /// The switch's end of the chain. Only the rank that reaches the switch has it.
    pub collnet_chain_up: Option<u32>,
    /// The switch's end for the rank that heads its host. Only that rank has it.
    pub collnet_direct_out: Option<u32>,
}

/// One direction of a transfer with one peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Leg {
    /// Direction in which the data goes.
    pub direction: Direction,
    /// The peer's rank.
    pub peer: u32,
    /// Number of the connection with the peer (`connIndex`). Collectives use connection 0.
    /// Point-to-point transfers and data that goes up to a switch use connection 1.
    pub index: u8,
}

impl Channel {
    /// Returns the legs of an operation, in the order in which NCCL posts them (`proxy.cc
    /// ncclProxySaveOp`). `root` is the root of a rooted collective, or the peer of a send or a
    /// receive. Other patterns ignore `root`.
    ///
    /// A leg needs a proxy only if its connection is over the network. The caller knows whether it is.
    pub fn legs(&self, pattern: Pattern, root: u32) -> heapless::Vec<Leg, LEGS_MAX> {
        use Direction::{Recv, Send};
        use Pattern as P;
        let Channel { rank, ring, tree, .. } = *self;
        let mut legs = heapless::Vec::new();
        let mut add = |direction, peer: Option<u32>, index| {
            if let Some(peer) = peer {
                // The vector has room for the longest pattern, which goes up and down a tree.
                let _ = legs.push(Leg { direction, peer, index });
            }
        };
        match pattern {
            P::Ring | P::RingTwice => {
                add(Recv, Some(ring.prev), 0);
                add(Send, Some(ring.next), 0);
            }
            // A chain cuts the ring at one edge: on one side is the root, on the other its neighbour.
            P::PipelineFrom => {
                add(Recv, (root != rank).then_some(ring.prev), 0);
                add(Send, (root != ring.next).then_some(ring.next), 0);
            }
            P::PipelineTo => {
                add(Recv, (root != ring.prev).then_some(ring.prev), 0);
                add(Send, (root != rank).then_some(ring.next), 0);
            }
            P::TreeUp | P::TreeDown | P::TreeUpDown => {
                if pattern != P::TreeDown {
                    tree.down.into_iter().for_each(|child| add(Recv, child, 0));
                    add(Send, tree.up, 0);
                }
                if pattern != P::TreeUp {
                    tree.down.into_iter().for_each(|child| add(Send, child, 0));
                    add(Recv, tree.up, 0);
                }
            }
            P::CollnetChain => {
                add(Send, self.collnet_chain_up, 1);
                add(Recv, self.collnet_chain_up, 0);
            }
            P::CollnetDirect => {
                add(Send, self.collnet_direct_out, 1);
                add(Recv, self.collnet_direct_out, 0);
            }
            // A rank copies data that it sends to itself, so it needs no leg.
            P::Send => add(Send, (root != rank).then_some(root), 1),
            P::Recv => add(Recv, (root != rank).then_some(root), 1),
        }
        legs
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::vec::Vec;

    use super::*;
    use crate::topology::Direction::{Recv, Send};

    fn legs(channel: &Channel, pattern: Pattern, root: u32) -> Vec<(Direction, u32, u8)> {
        channel.legs(pattern, root).iter().map(|leg| (leg.direction, leg.peer, leg.index)).collect()
    }

    /// The channel of rank `rank` among `nranks` on the ring 0 → 1 → 2 …
    fn on_ring(rank: u32, nranks: u32) -> Channel {
        let ring = Ring { prev: (rank + nranks - 1) % nranks, next: (rank + 1) % nranks };
        Channel { rank, ring, ..Channel::default() }
    }

    #[test]
    fn a_ring_receives_from_behind_and_sends_ahead() {
        for pattern in [Pattern::Ring, Pattern::RingTwice] {
            assert_eq!(legs(&on_ring(2, 5), pattern, 2), [(Recv, 1, 0), (Send, 3, 0)]);
        }
    }

    #[test]
    fn every_leg_of_a_chain_has_its_other_end_and_just_one_edge_of_the_ring_is_cut() {
        for nranks in 2..6 {
            for root in 0..nranks {
                for (pattern, cut) in
                    [(Pattern::PipelineFrom, root), (Pattern::PipelineTo, (root + 1) % nranks)]
                {
                    // The receiving rank names an edge of the ring.
                    let (mut sent, mut received) = (Vec::new(), Vec::new());
                    for rank in 0..nranks {
                        for (direction, peer, _) in legs(&on_ring(rank, nranks), pattern, root) {
                            match direction {
                                Send => sent.push(peer),
                                Recv => received.push(rank),
                            }
                        }
                    }
                    sent.sort_unstable();
                    let whole: Vec<u32> = (0..nranks).filter(|rank| *rank != cut).collect();
                    assert_eq!((&sent, &received), (&whole, &whole), "{pattern:?} {root}");
                }
            }
        }
    }

    #[test]
    fn a_tree_goes_up_before_it_goes_down() {
        let tree = Tree { up: Some(9), down: [Some(1), None, Some(3)] };
        let channel = Channel { rank: 4, tree, ..Channel::default() };
        let up = [(Recv, 1, 0), (Recv, 3, 0), (Send, 9, 0)];
        let down = [(Send, 1, 0), (Send, 3, 0), (Recv, 9, 0)];
        assert_eq!(legs(&channel, Pattern::TreeUp, 0), up);
        assert_eq!(legs(&channel, Pattern::TreeDown, 0), down);
        assert_eq!(legs(&channel, Pattern::TreeUpDown, 0), [up, down].concat());
        let tree = Tree { up: Some(9), down: [Some(1), Some(2), Some(3)] };
        assert_eq!(Channel { tree, ..channel }.legs(Pattern::TreeUpDown, 0).len(), LEGS_MAX);
    }

    #[test]
    fn only_the_rank_at_the_switch_needs_a_proxy_for_collnet() {
        let at_switch = Channel {
            collnet_chain_up: Some(8),
            collnet_direct_out: Some(7),
            ..Channel::default()
        };
        assert_eq!(legs(&at_switch, Pattern::CollnetChain, 0), [(Send, 8, 1), (Recv, 8, 0)]);
        assert_eq!(legs(&at_switch, Pattern::CollnetDirect, 0), [(Send, 7, 1), (Recv, 7, 0)]);
        for pattern in [Pattern::CollnetChain, Pattern::CollnetDirect] {
            assert!(legs(&Channel::default(), pattern, 0).is_empty());
        }
    }

    #[test]
    fn point_to_point_names_the_peer_and_never_oneself() {
        let channel = Channel { rank: 3, ..Channel::default() };
        assert_eq!(legs(&channel, Pattern::Send, 5), [(Send, 5, 1)]);
        assert_eq!(legs(&channel, Pattern::Recv, 5), [(Recv, 5, 1)]);
        assert!(legs(&channel, Pattern::Send, 3).is_empty());
        assert!(legs(&channel, Pattern::Recv, 3).is_empty());
    }

    #[test]
    fn a_code_is_the_place_among_all() {
        for (code, pattern) in Pattern::ALL.iter().enumerate() {
            assert_eq!(*pattern as usize, code);
        }
    }
}
