//! Handles messages from the builders, zygotes and children of warm pools.

use std::os::fd::OwnedFd;

use belljar_model::outcome::Warmth;
use belljar_model::pool::ConfinementMismatch;

use super::child::WarmChild;
use super::pool::{PoolEvent, WarmPool};
use super::pools::{PoolEventSource, WarmPools};
use super::zygote::{Zygote, ZygoteEvent};
use super::zygote_resources::ZygoteResources;
use crate::inside::BuilderEvent;
use crate::launcher::setup::LauncherContext;
use crate::step::{Step, StepFailed};

impl WarmPools {
    /// Handles a descriptor that is ready.
    #[must_use]
    pub(crate) fn handle(
        &mut self,
        context: &mut LauncherContext,
        source: PoolEventSource,
    ) -> Vec<PoolEvent> {
        self.dispatch(context, source);
        self.take_events()
    }

    fn dispatch(&mut self, context: &mut LauncherContext, source: PoolEventSource) {
        let is_it = |pool: &WarmPool| match source {
            PoolEventSource::Zygote(number) | PoolEventSource::Successor(number) => pool.number == number,
            PoolEventSource::Child(number) => {
                pool.preparing.iter().any(|(child, _)| child.number() == number)
            }
            PoolEventSource::Builder(_) => false,
        };
        if let PoolEventSource::Builder(number) = source {
            self.handle_builder(context, number);
            return;
        }
        let Some(at) = self.pools.iter().position(is_it) else { return };
        match source {
            PoolEventSource::Zygote(_) => self.handle_zygote(context, at),
            PoolEventSource::Successor(_) => self.handle_successor(context, at),
            PoolEventSource::Child(number) => self.handle_child(context, at, number),
            PoolEventSource::Builder(_) => {}
        }
    }

    fn handle_builder(&mut self, context: &mut LauncherContext, zygote: u64) {
        let Some(resources) = self.zygote_resources.iter_mut().find(|resources| resources.number == zygote)
        else {
            return;
        };
        let (event, fds) = match resources.builder().receive() {
            Ok(Some(answer)) => answer,
            Ok(None) => return,
            Err(_) => {
                resources.disconnect_builder();
                let is_it = |pool: &WarmPool| pool.zygote.as_ref().is_some_and(|one| one.number() == zygote);
                if let Some(at) = self.pools.iter().position(is_it) {
                    self.fail_zygote(context, at, "its jail builder exited");
                }
                return;
            }
        };
        match event {
            BuilderEvent::Built { number, has_rules } => {
                self.handle_built(context, number, Ok((fds, has_rules)))
            }
            BuilderEvent::NotBuilt { number, failure } => self.handle_built(context, number, Err(failure)),
            BuilderEvent::Inspected { number, mismatch } => self.handle_inspected(context, number, mismatch),
        }
    }

    /// Handles the builder's result for a jail, which may have been killed in the meantime.
    fn handle_built(
        &mut self,
        context: &mut LauncherContext,
        number: u64,
        built: Result<(Vec<OwnedFd>, bool), StepFailed>,
    ) {
        let is_it = |pool: &WarmPool| pool.jails().any(|jail| jail.number == number);
        let Some(at) = self.pools.iter().position(is_it) else {
            let init = built.ok().and_then(|(fds, _)| fds.into_iter().next());
            self.events.push(PoolEvent::BuiltAfterKill(number, init));
            return;
        };
        let pool = &mut self.pools[at];
        let zygote = pool.zygote.as_ref().map_or(0, Zygote::number);
        let Some(jail) = pool.jail_mut(number) else { return };
        match built.and_then(|(fds, has_rules)| jail.take_built(context, zygote, fds, has_rules)) {
            Ok(()) => self.request_next(context, at),
            Err(failed) => self.fail_zygote(context, at, &failed.to_string()),
        }
    }

    /// Handles the inspection result of a child.
    fn handle_inspected(&mut self, context: &mut LauncherContext, number: u64, mismatch: Option<String>) {
        let is_due = |pool: &WarmPool| pool.preparing.iter().any(|(child, _)| child.number() == number);
        let Some(at) = self.pools.iter().position(is_due) else { return };
        let mut due = self.pools[at].preparing.iter_mut();
        let Some((child, _)) = due.find(|(child, _)| child.number() == number) else { return };
        match mismatch {
            None => match child.mark_inspected() {
                Ok(()) => self.finish_preparation(context, at, number),
                Err(failed) => self.fail_zygote(context, at, &failed.to_string()),
            },
            // A child that has exited cannot be inspected, and nothing will run in it. For example, its
            // memory limit was too low.
            Some(_) if child.has_ended() => {
                let failed = StepFailed::new(Step::Fork, "(it was killed)", rustix::io::Errno::CHILD);
                self.fail_zygote(context, at, &failed.to_string());
            }
            Some(mismatch) => self.distrust(context, at, &mismatch),
        }
    }

    /// Ends a zygote and everything that came of it, because a child failed inspection: none of it can be
    /// trusted.
    fn distrust(&mut self, context: &mut LauncherContext, at: usize, mismatch: &str) {
        let pool = &mut self.pools[at];
        pool.state.mismatches += 1;
        let (name, tenant) = (pool.state.name.clone(), pool.state.tenant.clone());
        self.events.push(PoolEvent::Mismatch(ConfinementMismatch {
            pool: name,
            tenant,
            what: mismatch.to_owned(),
        }));
        let zygote = pool.zygote.as_ref().map(Zygote::number);
        self.events.extend(pool.kill_idle().into_iter().map(PoolEvent::Killed));
        self.fail_zygote(context, at, &format!("a child was not confined as it claimed: {mismatch}"));
        let all_resources =
            self.zygote_resources.iter_mut().filter(|resources| Some(resources.number) == zygote);
        all_resources.for_each(ZygoteResources::kill_all);
        self.events.extend(zygote.map(PoolEvent::Distrusted));
    }

    fn handle_zygote(&mut self, context: &mut LauncherContext, at: usize) {
        let pool = &mut self.pools[at];
        let Some(zygote) = pool.zygote.as_mut() else { return };
        match zygote.receive(&context.proc) {
            ZygoteEvent::Nothing | ZygoteEvent::Ready => {}
            ZygoteEvent::CannotImport { module, reason, needs_restart: start_anew } => {
                pool.state.obstacle = Some(format!("{module} is not kept warm: {reason}"));
                if start_anew {
                    pool.failed_imports.push(module);
                    self.shut_down_zygote(context, at);
                }
            }
            ZygoteEvent::Forked { number, main } => {
                if let Some((child, _)) =
                    pool.preparing.iter_mut().find(|(child, _)| child.number() == number)
                {
                    child.set_process(main);
                    self.inspect_child(context, at, number);
                }
            }
            ZygoteEvent::ForkFailed(failed) => self.fail_zygote(context, at, &failed.to_string()),
            ZygoteEvent::Failed(reason) => self.fail_zygote(context, at, &reason),
        }
    }

    /// Handles a message from a successor. It takes over as soon as it can fork, including requests made to
    /// its predecessor.
    fn handle_successor(&mut self, context: &mut LauncherContext, at: usize) {
        let pool = &mut self.pools[at];
        let Some(successor) = pool.successor.as_mut() else { return };
        match successor.receive(&context.proc) {
            ZygoteEvent::Ready => {
                let successor = pool.successor.take();
                self.shut_down_zygote(context, at);
                self.pools[at].zygote = successor;
                self.request_next(context, at);
            }
            ZygoteEvent::Failed(_) => {
                // The predecessor stays; another successor is started at the end of the demand window.
                let gone = pool.successor.take();
                gone.into_iter().for_each(|zygote| self.kill_zygote(context, zygote));
            }
            _ => {}
        }
    }

    fn handle_child(&mut self, context: &mut LauncherContext, at: usize, number: u64) {
        let mut due = self.pools[at].preparing.iter_mut();
        let Some((child, _)) = due.find(|(child, _)| child.number() == number) else { return };
        match child.receive() {
            Ok(()) if child.is_ready() => self.finish_preparation(context, at, number),
            Ok(()) => self.inspect_child(context, at, number),
            Err(failed) => self.fail_zygote(context, at, &failed.to_string()),
        }
    }

    /// Has a child inspected, once it claims to be confined and the zygote has reported its process.
    fn inspect_child(&mut self, context: &mut LauncherContext, at: usize, number: u64) {
        let mut due = self.pools[at].preparing.iter_mut();
        let Some((child, _)) = due.find(|(child, _)| child.number() == number) else { return };
        if let Err(failed) = child.request_inspection(context) {
            self.fail_zygote(context, at, &failed.to_string());
        }
    }

    /// Starts the request that waits for a ready child, or adds the child to the idle ones.
    fn finish_preparation(&mut self, context: &mut LauncherContext, at: usize, number: u64) {
        let pool = &mut self.pools[at];
        let ready = |(child, _): &(WarmChild, _)| child.number() == number && child.is_ready();
        let Some(found) = pool.preparing.iter().position(ready) else { return };
        let (mut child, pending) = pool.preparing.swap_remove(found);
        child.record_preparation(context);
        pool.state.refill_ms = child.preparation_time.as_secs_f64() * 1e3;
        pool.mark_healthy();
        match pending {
            None => pool.add_idle(child),
            Some(mut pending) => match child.start(context, &mut pending, Warmth::Fork) {
                Ok(run) => self.events.push(PoolEvent::Started(pending.run, Box::new(run))),
                Err(failed) => {
                    self.events.push(PoolEvent::Killed(failed.1.kill()));
                    self.events.push(PoolEvent::StartCold(pending));
                }
            },
        }
        self.request_next(context, at);
    }
}
