//! A round over the active operations (`proxy.cc progressOps`, `net.cc sendProxyProgress` and
//! `recvProxyProgress`).

use super::{
    Args, Connection, Engine, OpStage, Probe, ProgressError, ProxyEvent, ProxySlice, Sub, Transport,
};
use crate::fifo::RECVS_MAX;
use crate::math::STEPS;
use crate::proxy::{BankSlot, Banks};

impl<A: Banks<BankSlot<Args>>, C: Banks<Option<Connection>>> Engine<A, C> {
    /// Moves each ready slice by one stage. Returns whether any slice moved; if none did, the engine
    /// was idle.
    ///
    /// After an error the caller can only drop the engine: nobody knows which requests of the failed
    /// transport are still in progress.
    pub fn progress<T: Transport>(
        &mut self,
        transport: &mut T,
        probe: &mut impl Probe,
    ) -> Result<bool, ProgressError<T::Error>> {
        let mut moved = false;
        let (mut at, mut before) = (self.active.map(|(first, _)| first), None);
        while let Some(index) = at {
            let Some(args) = self.args.get_mut(index) else { break };
            if !args.running {
                begin(args, &mut self.connections);
            }
            moved |= args.advance(&mut self.connections, transport, probe)?;
            before = if args.subs.iter().all(Sub::is_done) {
                at = args.next;
                self.remove(index, before)
            } else {
                self.pass_on(index);
                at = self.args.get(index).and_then(|args| args.next);
                Some(index)
            };
        }
        Ok(moved)
    }

    /// Lets the next args of the chain begin, behind these args, if all steps of these args are on
    /// their way.
    fn pass_on(&mut self, index: u32) {
        let Some(args) = self.args.get_mut(index).filter(|args| args.is_passed_on()) else {
            return;
        };
        let Some(peer) = args.next_peer.take() else { return };
        args.successor = Some(peer);
        let next = args.next.replace(peer);
        if let Some(peer) = self.args.get_mut(peer) {
            peer.early = true;
            peer.next = next;
        }
        if let (None, Some((first, _))) = (next, self.active) {
            self.active = Some((first, peer));
        }
    }

    /// Removes completed args from the active list. The args that waited for them take their place.
    /// Returns the args that now stand before the next active ones.
    fn remove(&mut self, index: u32, before: Option<u32>) -> Option<u32> {
        let Some(args) = self.args.get(index) else { return before };
        let (next, next_peer, chain_at) = (args.next, args.next_peer, args.chain_at);
        let successor = args.successor;
        for sub in &args.subs {
            if let Some(Some(connection)) = self.connections.at_mut(sub.connection.0) {
                connection.uses -= 1;
            }
        }
        let here = next_peer.or(next);
        match next_peer.and_then(|peer| self.args.get_mut(peer)) {
            Some(peer) => peer.next = next,
            None => match successor.and_then(|successor| self.args.get_mut(successor)) {
                Some(successor) => successor.early = false,
                None => {
                    if let Some(first) = self.connection_mut(chain_at) {
                        first.tail = None;
                    }
                }
            },
        }
        match before.and_then(|before| self.args.get_mut(before)) {
            Some(before) => before.next = here,
            None => {
                self.active = self.active.and_then(|(_, last)| here.map(|first| (first, last)));
            }
        }
        let now_before = next_peer.or(before);
        if let (None, Some((first, _)), Some(last)) = (next, self.active, now_before) {
            self.active = Some((first, last));
        }
        self.args.give_back(index);
        now_before
    }
}

/// Gives each sub its first step. Places subs that one request can serve next to each other.
fn begin<C: Banks<Option<Connection>>>(args: &mut Args, connections: &mut C) {
    let chunk = u64::from(args.chunk_steps);
    for sub in &mut args.subs {
        if let Some(Some(connection)) = connections.at_mut(sub.connection.0) {
            // The sum wraps after 2^64 steps. The slots wrap too, because their number is a power of
            // two.
            sub.base = connection.step.wrapping_add(chunk - 1) / chunk * chunk;
            connection.step = sub.base.wrapping_add(sub.nsteps);
        }
    }
    let group_of =
        |sub: &Sub| connections.at(sub.connection.0)?.as_ref().and_then(Connection::recv_group);
    let mut start = 0;
    while start < args.subs.len() {
        let mut len = 1;
        if let Some((comm, most)) = group_of(&args.subs[start]) {
            for i in start + 1..args.subs.len() {
                if len < most && group_of(&args.subs[i]).is_some_and(|(other, _)| other == comm) {
                    args.subs.swap(start + len, i);
                    len += 1;
                }
            }
        }
        for sub in &mut args.subs[start..start + len] {
            sub.group_len = 0;
        }
        args.subs[start].group_len = len as u8;
        start += len;
    }
    args.running = true;
}

impl Args {
    /// Moves each ready slice by one stage.
    fn advance<C: Banks<Option<Connection>>, T: Transport>(
        &mut self,
        connections: &mut C,
        transport: &mut T,
        probe: &mut impl Probe,
    ) -> Result<bool, ProgressError<T::Error>> {
        if !self.shared {
            return self.advance_own(connections, transport, probe);
        }
        let mut moved = false;
        let mut before = None;
        for &stage in OpStage::of(self.direction) {
            let mut start = 0;
            while start < self.subs.len() {
                // One network request serves a whole group; the GPU handles each connection by itself.
                let len = match stage {
                    OpStage::Transmit | OpStage::Complete => 1,
                    _ => usize::from(self.subs[start].group_len).max(1),
                };
                moved |= self.advance_group(start..start + len, before, stage, transport, probe)?;
                start += len;
            }
            before = Some(stage);
        }
        Ok(moved)
    }

    /// Moves the next slice of some subs past `stage` if the slice is past the stage `before` and the
    /// transport is ready. All subs of a group have the same count, or no more steps.
    fn advance_group<T: Transport>(
        &mut self,
        group: core::ops::Range<usize>,
        before: Option<OpStage>,
        stage: OpStage,
        transport: &mut T,
        probe: &mut impl Probe,
    ) -> Result<bool, ProgressError<T::Error>> {
        let slice = u64::from(self.slice_steps);
        let depth = self.depth();
        let mut steps = heapless::Vec::<ProxySlice, RECVS_MAX>::new();
        for sub in self.subs[group.clone()].iter().filter(|sub| sub.count(stage) < sub.nsteps) {
            let limit = match before {
                Some(before) => sub.count(before),
                None => sub.count(OpStage::Complete).saturating_add(depth),
            };
            if limit < sub.count(stage).saturating_add(slice) {
                return Ok(false);
            }
            // A group has at most as many subs as the vector has room for.
            let _ = steps.push(self.step(sub, stage, depth));
        }
        if steps.is_empty() || !bring(transport, stage, &steps)? {
            return Ok(false);
        }
        for sub in self.subs[group].iter_mut().filter(|sub| sub.count(stage) < sub.nsteps) {
            sub.counts[stage as usize] += slice;
        }
        for step in &steps {
            probe.record(ProxyEvent::Step { step: *step, stage });
        }
        Ok(true)
    }

    /// Moves each ready slice of args that share no buffers by one stage. Such args have one sub and
    /// may have begun early. This function is a fast path, because the latency of short messages
    /// depends on it.
    fn advance_own<C: Banks<Option<Connection>>, T: Transport>(
        &mut self,
        connections: &mut C,
        transport: &mut T,
        probe: &mut impl Probe,
    ) -> Result<bool, ProgressError<T::Error>> {
        let (slice, depth) = (u64::from(self.slice_steps), self.depth());
        let Some(id) = self.subs.first().map(|sub| sub.connection.0) else { return Ok(false) };
        let connection = connections.at_mut(id).and_then(Option::as_mut);
        // The number of completed steps of the operations before this one.
        let done = connection.as_ref().map_or(0, |connection| connection.done);
        let mut moved = false;
        let mut before = None;
        for &stage in OpStage::of(self.direction) {
            let sub = &self.subs[0];
            let count = sub.count(stage);
            let limit = match before {
                Some(_) if self.early && stage == OpStage::Complete => 0,
                Some(before) => sub.count(before),
                // The earlier operations of the chain hold the slots of their steps that are not done.
                None if self.early => (depth + done).saturating_sub(sub.base),
                None => sub.count(OpStage::Complete).saturating_add(depth),
            };
            before = Some(stage);
            if count >= sub.nsteps || limit < count.saturating_add(slice) {
                continue;
            }
            let step = self.step(sub, stage, depth);
            if bring(transport, stage, core::slice::from_ref(&step))? {
                self.subs[0].counts[stage as usize] += slice;
                probe.record(ProxyEvent::Step { step, stage });
                moved = true;
            }
        }
        if let (Some(connection), Some(sub), false) = (connection, self.subs.first(), self.early) {
            connection.done = sub.base.wrapping_add(sub.count(OpStage::Complete));
        }
        Ok(moved)
    }

    fn step(&self, sub: &Sub, stage: OpStage, depth: u64) -> ProxySlice {
        let count = sub.count(stage);
        let step = sub.base.wrapping_add(count);
        let slot = (step % u64::from(STEPS)) as u8;
        ProxySlice {
            connection: sub.connection,
            direction: self.direction,
            channel: sub.channel,
            peer: sub.peer,
            protocol: self.protocol,
            op_count: self.op_count,
            step,
            slot,
            buffer_slot: if self.shared {
                (count % depth) as u8 * self.subs.len() as u8 + sub.place
            } else {
                slot
            },
            steps: self.slice_steps,
            slice_bytes: sub.slice_bytes,
        }
    }
}

/// Asks the transport to bring a slice of some steps past a stage. Returns whether it did.
fn bring<T: Transport>(
    transport: &mut T,
    stage: OpStage,
    steps: &[ProxySlice],
) -> Result<bool, ProgressError<T::Error>> {
    transport.advance(stage, steps).map_err(|error| ProgressError { stage, step: steps[0], error })
}
