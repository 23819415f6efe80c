//! Handles messages from the builders, zygotes and children of warm pools.

use std::os::fd::OwnedFd;

use super::child::WarmChild;
use super::pool::WarmPool;
use super::pools::{PoolEvent, PoolEventSource, WarmPools};
use super::zygote::{Zygote, ZygoteEvent};
use super::zygote_resources::ZygoteResources;
use crate::inside::BuilderEvent;
use crate::launcher::setup::LauncherContext;
use crate::spec::{JailWarmth, WarmChildMismatch};
use crate::step::{Step, StepFailed};

impl WarmPools {
    /// Handles a descriptor that is ready.
    pub(crate) fn handle(&mut self, home: &mut LauncherContext, crib: PoolEventSource) {
        let is_it = |keeper: &WarmPool| match crib {
            PoolEventSource::Zygote(number) | PoolEventSource::Successor(number) => keeper.number == number,
            PoolEventSource::Child(number) => {
                keeper.preparing.iter().any(|(child, _)| child.number() == number)
            }
            PoolEventSource::Builder(_) => false,
        };
        if let PoolEventSource::Builder(number) = crib {
            self.handle_builder(home, number);
            return;
        }
        let Some(at) = self.pools.iter().position(is_it) else { return };
        match crib {
            PoolEventSource::Zygote(_) => self.handle_zygote(home, at),
            PoolEventSource::Successor(_) => self.handle_successor(home, at),
            PoolEventSource::Child(number) => self.handle_child(home, at, number),
            PoolEventSource::Builder(_) => {}
        }
    }

    fn handle_builder(&mut self, home: &mut LauncherContext, zygote: u64) {
        let Some(lineage) = self.zygote_resources.iter_mut().find(|lineage| lineage.number == zygote) else {
            return;
        };
        let (notice, fds) = match lineage.builder().receive() {
            Ok(Some(answer)) => answer,
            Ok(None) => return,
            Err(_) => {
                lineage.builder_disconnected = true;
                let is_it =
                    |keeper: &WarmPool| keeper.zygote.as_ref().is_some_and(|one| one.number() == zygote);
                if let Some(at) = self.pools.iter().position(is_it) {
                    self.fail_zygote(home, at, "its jail builder exited");
                }
                return;
            }
        };
        match notice {
            BuilderEvent::Built { number, has_rules } => {
                self.handle_built(home, number, Ok((fds, has_rules)))
            }
            BuilderEvent::NotBuilt { number, failure } => self.handle_built(home, number, Err(failure)),
            BuilderEvent::Inspected { number, mismatch } => self.handle_inspected(home, number, mismatch),
        }
    }

    /// Handles the builder's result for a jail, which may have been discarded in the meantime.
    fn handle_built(
        &mut self,
        home: &mut LauncherContext,
        number: u64,
        built: Result<(Vec<OwnedFd>, bool), StepFailed>,
    ) {
        let is_it = |keeper: &WarmPool| keeper.jails().any(|jail| jail.number == number);
        let Some(at) = self.pools.iter().position(is_it) else {
            if let Some(dying) = self.dying.iter_mut().find(|dying| dying.number == number) {
                dying.set_built(home, built.ok().and_then(|(fds, _)| fds.into_iter().next()));
            }
            return;
        };
        let keeper = &mut self.pools[at];
        let zygote = keeper.zygote.as_ref().map_or(0, Zygote::number);
        let Some(jail) = keeper.jail_mut(number) else { return };
        match built.and_then(|(fds, has_rules)| jail.take_built(home, zygote, fds, has_rules)) {
            Ok(()) => self.request_next(home, at),
            Err(failed) => self.fail_zygote(home, at, &failed.to_string()),
        }
    }

    /// Handles the inspection result of a child.
    fn handle_inspected(&mut self, home: &mut LauncherContext, number: u64, mismatch: Option<String>) {
        let is_due = |keeper: &WarmPool| keeper.preparing.iter().any(|(child, _)| child.number() == number);
        let Some(at) = self.pools.iter().position(is_due) else { return };
        let mut due = self.pools[at].preparing.iter_mut();
        let Some((child, _)) = due.find(|(child, _)| child.number() == number) else { return };
        match mismatch {
            None => match child.mark_inspected() {
                Ok(()) => self.finish_preparation(home, at, number),
                Err(failed) => self.fail_zygote(home, at, &failed.to_string()),
            },
            // A child that has exited cannot be inspected, and nothing will run in it. For example, its
            // memory limit was too low.
            Some(_) if child.has_ended() => {
                let failed = StepFailed::new(Step::Fork, "(it was killed)", rustix::io::Errno::CHILD);
                self.fail_zygote(home, at, &failed.to_string());
            }
            Some(mismatch) => self.distrust(home, at, &mismatch),
        }
    }

    /// Ends a zygote and everything that came of it, because a child failed inspection: none of it can be
    /// trusted.
    fn distrust(&mut self, home: &mut LauncherContext, at: usize, mismatch: &str) {
        let keeper = &mut self.pools[at];
        keeper.state.mismatches += 1;
        let (pool, tenant) = (keeper.state.name.clone(), keeper.state.tenant.clone());
        self.events.push(PoolEvent::Mismatch(WarmChildMismatch { pool, tenant, what: mismatch.to_owned() }));
        let zygote = keeper.zygote.as_ref().map(Zygote::number);
        self.dying.extend(keeper.kill_idle());
        self.fail_zygote(home, at, &format!("a child was not confined as it claimed: {mismatch}"));
        let lineages = self.zygote_resources.iter_mut().filter(|lineage| Some(lineage.number) == zygote);
        lineages.for_each(ZygoteResources::kill_all);
        self.events.extend(zygote.map(PoolEvent::Distrusted));
    }

    fn handle_zygote(&mut self, home: &mut LauncherContext, at: usize) {
        let keeper = &mut self.pools[at];
        let Some(zygote) = keeper.zygote.as_mut() else { return };
        match zygote.receive(&home.proc) {
            ZygoteEvent::Nothing | ZygoteEvent::Ready => {}
            ZygoteEvent::CannotImport { module, reason, needs_restart: start_anew } => {
                keeper.state.obstacle = Some(format!("{module} is not kept warm: {reason}"));
                if start_anew {
                    keeper.failed_imports.push(module);
                    self.shut_down_zygote(home, at);
                }
            }
            ZygoteEvent::Forked { number, main } => {
                if let Some((child, _)) =
                    keeper.preparing.iter_mut().find(|(child, _)| child.number() == number)
                {
                    child.set_process(main);
                    self.inspect_child(home, at, number);
                }
            }
            ZygoteEvent::ForkFailed(failed) => self.fail_zygote(home, at, &failed.to_string()),
            ZygoteEvent::Failed(reason) => self.fail_zygote(home, at, &reason),
        }
    }

    /// Handles a message from a successor. It takes over as soon as it can fork, including requests made to
    /// its predecessor.
    fn handle_successor(&mut self, home: &mut LauncherContext, at: usize) {
        let keeper = &mut self.pools[at];
        let Some(successor) = keeper.successor.as_mut() else { return };
        match successor.receive(&home.proc) {
            ZygoteEvent::Ready => {
                let successor = keeper.successor.take();
                self.shut_down_zygote(home, at);
                self.pools[at].zygote = successor;
                self.request_next(home, at);
            }
            ZygoteEvent::Failed(_) => {
                // The predecessor stays; another successor is started at the end of the demand window.
                let gone = keeper.successor.take();
                gone.into_iter().for_each(|zygote| self.kill_zygote(home, zygote));
            }
            _ => {}
        }
    }

    fn handle_child(&mut self, home: &mut LauncherContext, at: usize, number: u64) {
        let mut due = self.pools[at].preparing.iter_mut();
        let Some((child, _)) = due.find(|(child, _)| child.number() == number) else { return };
        match child.receive() {
            Ok(()) if child.is_ready() => self.finish_preparation(home, at, number),
            Ok(()) => self.inspect_child(home, at, number),
            Err(failed) => self.fail_zygote(home, at, &failed.to_string()),
        }
    }

    /// Has a child inspected, once it claims to be confined and the zygote has reported its process.
    fn inspect_child(&mut self, home: &mut LauncherContext, at: usize, number: u64) {
        let mut due = self.pools[at].preparing.iter_mut();
        let Some((child, _)) = due.find(|(child, _)| child.number() == number) else { return };
        if let Err(failed) = child.request_inspection(home) {
            self.fail_zygote(home, at, &failed.to_string());
        }
    }

    /// Starts the request that waits for a ready child, or adds the child to the idle ones.
    fn finish_preparation(&mut self, home: &mut LauncherContext, at: usize, number: u64) {
        let keeper = &mut self.pools[at];
        let ready = |(child, _): &(WarmChild, _)| child.number() == number && child.is_ready();
        let Some(found) = keeper.preparing.iter().position(ready) else { return };
        let (mut child, pending) = keeper.preparing.swap_remove(found);
        child.record_preparation(home);
        keeper.state.refill = child.preparation_time;
        keeper.mark_healthy();
        match pending {
            None => keeper.add_idle(child),
            Some(mut pending) => match child.start(home, &mut pending, JailWarmth::Fork) {
                Ok(run) => self.events.push(PoolEvent::Started(pending.run, Box::new(run))),
                Err(failed) => {
                    self.dying.push(failed.1.kill());
                    self.events.push(PoolEvent::StartCold(pending));
                }
            },
        }
        self.request_next(home, at);
    }
}
