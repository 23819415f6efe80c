//! Handles messages from the builders, zygotes and children of warm pools.

use std::os::fd::OwnedFd;

use super::child::Child;
use super::home::Home;
use super::keeper::Keeper;
use super::lineage::Lineage;
use super::nursery::{Crib, News, Nursery};
use super::zygote::{Said, Zygote};
use crate::inside::BuilderNotice;
use crate::spec::{Mismatch, Warmth};
use crate::step::{Step, StepFailed};

impl Nursery {
    /// Handles a descriptor that is ready.
    pub(super) fn handle(&mut self, home: &mut Home, crib: Crib) {
        let is_it = |keeper: &Keeper| match crib {
            Crib::Zygote(number) | Crib::Successor(number) => keeper.number == number,
            Crib::Child(number) => keeper.due.iter().any(|(child, _)| child.number() == number),
            Crib::Builder(_) => false,
        };
        if let Crib::Builder(number) = crib {
            self.hear_builder(home, number);
            return;
        }
        let Some(at) = self.keepers.iter().position(is_it) else { return };
        match crib {
            Crib::Zygote(_) => self.hear_zygote(home, at),
            Crib::Successor(_) => self.hear_successor(home, at),
            Crib::Child(number) => self.hear_child(home, at, number),
            Crib::Builder(_) => {}
        }
    }

    fn hear_builder(&mut self, home: &mut Home, zygote: u64) {
        let Some(lineage) = self.lineages.iter_mut().find(|lineage| lineage.number == zygote) else { return };
        let (notice, fds) = match lineage.builder().answer() {
            Ok(Some(answer)) => answer,
            Ok(None) => return,
            Err(_) => {
                lineage.builder_is_lost = true;
                let is_it =
                    |keeper: &Keeper| keeper.zygote.as_ref().is_some_and(|one| one.number() == zygote);
                if let Some(at) = self.keepers.iter().position(is_it) {
                    self.give_up(home, at, "its jail builder exited");
                }
                return;
            }
        };
        match notice {
            BuilderNotice::Built { number, has_rules } => self.hear_built(home, number, Ok((fds, has_rules))),
            BuilderNotice::NotBuilt { number, failure } => self.hear_built(home, number, Err(failure)),
            BuilderNotice::Inspected { number, mismatch } => self.hear_inspected(home, number, mismatch),
        }
    }

    /// Handles the builder's result for a jail, which may have been discarded in the meantime.
    fn hear_built(&mut self, home: &mut Home, number: u64, built: Result<(Vec<OwnedFd>, bool), StepFailed>) {
        let is_it = |keeper: &Keeper| keeper.jails().any(|jail| jail.number == number);
        let Some(at) = self.keepers.iter().position(is_it) else {
            if let Some(dying) = self.dying.iter_mut().find(|dying| dying.number == number) {
                dying.built(home, built.ok().and_then(|(fds, _)| fds.into_iter().next()));
            }
            return;
        };
        let keeper = &mut self.keepers[at];
        let zygote = keeper.zygote.as_ref().map_or(0, Zygote::number);
        let Some(jail) = keeper.jail_mut(number) else { return };
        match built.and_then(|(fds, has_rules)| jail.take_built(home, zygote, fds, has_rules)) {
            Ok(()) => self.ask_for_next(home, at),
            Err(failed) => self.give_up(home, at, &failed.to_string()),
        }
    }

    /// Handles the inspection result of a child.
    fn hear_inspected(&mut self, home: &mut Home, number: u64, mismatch: Option<String>) {
        let is_due = |keeper: &Keeper| keeper.due.iter().any(|(child, _)| child.number() == number);
        let Some(at) = self.keepers.iter().position(is_due) else { return };
        let mut due = self.keepers[at].due.iter_mut();
        let Some((child, _)) = due.find(|(child, _)| child.number() == number) else { return };
        match mismatch {
            None => match child.passed() {
                Ok(()) => self.settle(home, at, number),
                Err(failed) => self.give_up(home, at, &failed.to_string()),
            },
            // A child that has exited cannot be inspected, and nothing will run in it. For example, its
            // memory limit was too low.
            Some(_) if child.has_ended() => {
                let failed = StepFailed::new(Step::Fork, "(it was killed)", rustix::io::Errno::CHILD);
                self.give_up(home, at, &failed.to_string());
            }
            Some(mismatch) => self.distrust(home, at, &mismatch),
        }
    }

    /// Ends a zygote and everything that came of it, because a child failed inspection: none of it can be
    /// trusted.
    fn distrust(&mut self, home: &mut Home, at: usize, mismatch: &str) {
        let keeper = &mut self.keepers[at];
        keeper.state.mismatches += 1;
        let (pool, tenant) = (keeper.state.name.clone(), keeper.state.tenant.clone());
        self.news.push(News::Mismatch(Mismatch { pool, tenant, what: mismatch.to_owned() }));
        let zygote = keeper.zygote.as_ref().map(Zygote::number);
        self.dying.extend(keeper.clear());
        self.give_up(home, at, &format!("a child was not confined as it claimed: {mismatch}"));
        let lineages = self.lineages.iter_mut().filter(|lineage| Some(lineage.number) == zygote);
        lineages.for_each(Lineage::condemn);
        self.news.extend(zygote.map(News::Distrusted));
    }

    fn hear_zygote(&mut self, home: &mut Home, at: usize) {
        let keeper = &mut self.keepers[at];
        let Some(zygote) = keeper.zygote.as_mut() else { return };
        match zygote.hear(&home.proc) {
            Said::Nothing | Said::Fertile => {}
            Said::CannotImport { module, reason, start_anew } => {
                keeper.state.obstacle = Some(format!("{module} is not kept warm: {reason}"));
                if start_anew {
                    keeper.refused.push(module);
                    self.end_zygote(home, at);
                }
            }
            Said::Born { number, main } => {
                if let Some((child, _)) = keeper.due.iter_mut().find(|(child, _)| child.number() == number) {
                    child.born(main);
                    self.inspect(home, at, number);
                }
            }
            Said::Barren(failed) => self.give_up(home, at, &failed.to_string()),
            Said::Gone(reason) => self.give_up(home, at, &reason),
        }
    }

    /// Handles a message from a successor. It takes over as soon as it can fork, including requests made to
    /// its predecessor.
    fn hear_successor(&mut self, home: &mut Home, at: usize) {
        let keeper = &mut self.keepers[at];
        let Some(successor) = keeper.successor.as_mut() else { return };
        match successor.hear(&home.proc) {
            Said::Fertile => {
                let successor = keeper.successor.take();
                self.end_zygote(home, at);
                self.keepers[at].zygote = successor;
                self.ask_for_next(home, at);
            }
            Said::Gone(_) => {
                // The predecessor stays; another successor is started at the end of the demand window.
                let gone = keeper.successor.take();
                gone.into_iter().for_each(|zygote| self.end(home, zygote));
            }
            _ => {}
        }
    }

    fn hear_child(&mut self, home: &mut Home, at: usize, number: u64) {
        let mut due = self.keepers[at].due.iter_mut();
        let Some((child, _)) = due.find(|(child, _)| child.number() == number) else { return };
        match child.hear() {
            Ok(()) if child.is_ready() => self.settle(home, at, number),
            Ok(()) => self.inspect(home, at, number),
            Err(failed) => self.give_up(home, at, &failed.to_string()),
        }
    }

    /// Has a child inspected, once it claims to be confined and the zygote has reported its process.
    fn inspect(&mut self, home: &mut Home, at: usize, number: u64) {
        let mut due = self.keepers[at].due.iter_mut();
        let Some((child, _)) = due.find(|(child, _)| child.number() == number) else { return };
        if let Err(failed) = child.have_inspected(home) {
            self.give_up(home, at, &failed.to_string());
        }
    }

    /// Starts the request that waits for a ready child, or adds the child to the idle ones.
    fn settle(&mut self, home: &mut Home, at: usize, number: u64) {
        let keeper = &mut self.keepers[at];
        let ready = |(child, _): &(Child, _)| child.number() == number && child.is_ready();
        let Some(found) = keeper.due.iter().position(ready) else { return };
        let (mut child, pending) = keeper.due.swap_remove(found);
        child.settle(home);
        keeper.state.refill = child.took;
        keeper.mark_healthy();
        match pending {
            None => keeper.park(child),
            Some(mut pending) => match child.order(home, &mut pending, Warmth::Fork) {
                Ok(run) => self.news.push(News::Started(pending.run, Box::new(run))),
                Err(failed) => {
                    self.dying.push(failed.1.discard());
                    self.news.push(News::FallBack(pending));
                }
            },
        }
        self.ask_for_next(home, at);
    }
}
