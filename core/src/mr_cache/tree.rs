//! An AVL tree inside the slots of the cache, linked by slot number.
//!
//! Ordered by [`PageRange`]: class (domain and access), address, end. Which registration covers
//! `[addr, end)`? Every one that sorts before it is a candidate, and it is enough to look at the
//! one of them that reaches furthest. So each node knows which slot of its left subtree and itself
//! reaches furthest, and which of its whole subtree; "furthest" compares the class first, since of
//! the candidates those of the wanted class come last.

use super::{PageRange, Slot};

/// No slot. Past the end of any storage, so that `get` answers `None`.
pub(super) const NIL: u32 = u32::MAX;

const LEFT: usize = 0;
const RIGHT: usize = 1;

#[derive(Clone, Copy, Debug)]
pub(super) struct Node {
    pub(super) child: [u32; 2],
    /// The slot that reaches furthest of this one and its left subtree.
    pub(super) furthest_left: u32,
    /// The slot that reaches furthest of this one and both subtrees.
    pub(super) furthest: u32,
    /// Nodes on the longest way down, this one included.
    height: u8,
}

impl Default for Node {
    fn default() -> Self {
        Node { child: [NIL; 2], furthest_left: NIL, furthest: NIL, height: 0 }
    }
}

/// A slot that covers `want`, or [`NIL`].
pub(super) fn find<M>(slots: &[Slot<M>], root: u32, want: &PageRange) -> u32 {
    // Registrations seldom overlap, and then it is one of those on the way: looking at these
    // alone takes half the instructions.
    match descend(slots, root, want, |at, _| at) {
        NIL => descend(slots, root, want, |_, node| node.furthest_left),
        hit => hit,
    }
}

/// Goes down to the place of `want` and stops at the first `candidate` that covers it, asking for
/// one at each node that starts at or before `want`.
fn descend<M>(
    slots: &[Slot<M>],
    root: u32,
    want: &PageRange,
    candidate: impl Fn(u32, &Node) -> u32,
) -> u32 {
    let mut at = root;
    while let Some(slot) = slots.get(at as usize) {
        let side = if slot.range.starts_after(want) {
            LEFT
        } else {
            let candidate = candidate(at, &slot.node);
            if slots.get(candidate as usize).is_some_and(|slot| slot.range.reaches(want)) {
                return candidate;
            }
            RIGHT
        };
        at = slot.node.child[side];
    }
    NIL
}

/// Adds slot `new`, whose range is set and not yet in the tree; returns the new root.
pub(super) fn insert<M>(slots: &mut [Slot<M>], root: u32, new: u32) -> u32 {
    let Some(slot) = slots.get(root as usize) else {
        slots[new as usize].node = Node::default();
        update(slots, new);
        return new;
    };
    let side = if slots[new as usize].range < slot.range { LEFT } else { RIGHT };
    let child = insert(slots, slot.node.child[side], new);
    slots[root as usize].node.child[side] = child;
    rebalance(slots, root)
}

/// Takes slot `old` out, which is in the tree; returns the new root.
pub(super) fn remove<M>(slots: &mut [Slot<M>], root: u32, old: u32) -> u32 {
    let slot = &slots[root as usize];
    if root == old {
        return match slot.node.child {
            [NIL, only] | [only, NIL] => only,
            [left, right] => {
                let (right, next) = remove_first(slots, right);
                slots[next as usize].node.child = [left, right];
                rebalance(slots, next)
            }
        };
    }
    let side = if slots[old as usize].range < slot.range { LEFT } else { RIGHT };
    let child = remove(slots, slot.node.child[side], old);
    slots[root as usize].node.child[side] = child;
    rebalance(slots, root)
}

/// Takes the first slot in order out; returns the new root and that slot.
fn remove_first<M>(slots: &mut [Slot<M>], root: u32) -> (u32, u32) {
    let [left, right] = slots[root as usize].node.child;
    if left == NIL {
        return (right, root);
    }
    let (left, first) = remove_first(slots, left);
    slots[root as usize].node.child[LEFT] = left;
    (rebalance(slots, root), first)
}

/// Makes the heights of `at`'s subtrees, two apart at most, one apart at most; returns the root.
fn rebalance<M>(slots: &mut [Slot<M>], at: u32) -> u32 {
    let child = slots[at as usize].node.child;
    let heights = child.map(|child| height(slots, child));
    let side = if heights[LEFT] > heights[RIGHT] { LEFT } else { RIGHT };
    if heights[side] - heights[1 - side] < 2 {
        update(slots, at);
        return at;
    }
    let inner = slots[child[side] as usize].node.child.map(|child| height(slots, child));
    if inner[1 - side] > inner[side] {
        slots[at as usize].node.child[side] = rotate(slots, child[side], 1 - side);
    }
    rotate(slots, at, side)
}

/// Lifts the child of `at` on `side` into its place; returns it.
fn rotate<M>(slots: &mut [Slot<M>], at: u32, side: usize) -> u32 {
    let up = slots[at as usize].node.child[side];
    slots[at as usize].node.child[side] = slots[up as usize].node.child[1 - side];
    slots[up as usize].node.child[1 - side] = at;
    update(slots, at);
    update(slots, up);
    up
}

/// Recomputes what `at` knows of its subtrees from its children.
fn update<M>(slots: &mut [Slot<M>], at: u32) {
    let [left, right] = slots[at as usize].node.child;
    let furthest_of = |child: u32| slots.get(child as usize).map_or(NIL, |s| s.node.furthest);
    let furthest_left = further(slots, at, furthest_of(left));
    let furthest = further(slots, furthest_left, furthest_of(right));
    let height = 1 + height(slots, left).max(height(slots, right));
    let node = &mut slots[at as usize].node;
    *node = Node { child: node.child, furthest_left, furthest, height };
}

/// Which of the two slots reaches further; `b` may be [`NIL`].
fn further<M>(slots: &[Slot<M>], a: u32, b: u32) -> u32 {
    let reach = |slot: &Slot<M>| (slot.range.class, slot.range.end);
    match slots.get(b as usize) {
        Some(slot) if reach(slot) > reach(&slots[a as usize]) => b,
        _ => a,
    }
}

fn height<M>(slots: &[Slot<M>], at: u32) -> u8 {
    slots.get(at as usize).map_or(0, |slot| slot.node.height)
}
