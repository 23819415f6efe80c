//! Measures how long turns of the event loop take, and which handler took most of each. A turn is everything
//! between two polls; no other event is handled while it lasts.

use std::time::{Duration, Instant};

use belljar_model::pool::LongestTurns;

use crate::sys;

/// A part of a turn, to which CPU time is attributed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Handler {
    Order,
    Event,
    Ending,
    Deadline,
    Idle,
    Sweep,
}

const HANDLERS: [(Handler, &str); 6] = [
    (Handler::Order, "order"),
    (Handler::Event, "event"),
    (Handler::Ending, "ending"),
    (Handler::Deadline, "deadline"),
    (Handler::Idle, "idle"),
    (Handler::Sweep, "sweep"),
];

/// Measures turns of the event loop.
#[derive(Debug)]
pub(super) struct TurnClock {
    longest: [LongestTurns; HANDLERS.len()],
    began: Instant,
    cpu_began: Duration,
    cpu_before: Duration,
    /// The index of the handler that took the most CPU time in this turn, and that time.
    slowest: (usize, Duration),
}

impl TurnClock {
    pub(super) fn new() -> Self {
        let longest = HANDLERS
            .map(|(_, handler)| LongestTurns { handler: handler.to_owned(), ..LongestTurns::default() });
        let (began, cpu) = (Instant::now(), sys::thread_cpu_time());
        Self { longest, began, cpu_began: cpu, cpu_before: cpu, slowest: (0, Duration::ZERO) }
    }

    /// Begins a turn, when the poll has returned.
    pub(super) fn begin(&mut self) {
        let cpu = sys::thread_cpu_time();
        (self.began, self.cpu_began, self.cpu_before) = (Instant::now(), cpu, cpu);
        self.slowest = (0, Duration::ZERO);
    }

    /// Attributes the CPU time since the previous call to this handler.
    pub(super) fn lap(&mut self, handler: Handler) {
        let cpu = sys::thread_cpu_time();
        let took = cpu.saturating_sub(self.cpu_before);
        self.cpu_before = cpu;
        if took > self.slowest.1 {
            let at = HANDLERS.iter().position(|(known, _)| *known == handler);
            self.slowest = (at.unwrap_or(0), took);
        }
    }

    /// Ends a turn, before the next poll.
    pub(super) fn end(&mut self) {
        let (cpu, wall) = (self.cpu_before.saturating_sub(self.cpu_began), self.began.elapsed());
        let longest = &mut self.longest[self.slowest.0];
        longest.longest_cpu = longest.longest_cpu.max(cpu);
        longest.longest_wall = longest.longest_wall.max(wall);
    }

    /// Returns the longest turns so far, by the handler that took most of each.
    pub(super) fn longest(&self) -> Vec<LongestTurns> {
        self.longest.to_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turn_is_attributed_to_its_slowest_handler() {
        let mut clock = TurnClock::new();
        clock.begin();
        clock.lap(Handler::Order);
        let before = sys::thread_cpu_time();
        while sys::thread_cpu_time() - before < Duration::from_millis(2) {}
        clock.lap(Handler::Deadline);
        clock.lap(Handler::Sweep);
        clock.end();
        let found = clock.longest();
        let longest = found.iter().max_by_key(|turns| turns.longest_cpu).unwrap();
        assert_eq!(longest.handler, "deadline");
        assert!(longest.longest_cpu >= Duration::from_millis(2), "{longest:?}");
        assert!(
            found.iter().filter(|turns| turns.handler != "deadline").all(|turns| turns.longest_cpu.is_zero())
        );
    }
}
