//! Fuzz targets for the messages between the launcher, its builders, zygotes and their children.
//!
//! `cargo test` runs each target for a second, and the group `fuzz` of `./test --all` for five minutes.
//! `cargo bolero test -p belljar-jail launcher::warm::zygote::fuzz_tests::fuzz_zygote_messages` runs one without a
//! time limit, guided by coverage.

use std::process::{Child, Command, Stdio};

use belljar_zygote::message::{
    LandlockAccess, MAX_FDS, MAX_LIMITS, MAX_PAGE_RANGES, OPTIONAL_FDS, PageRange, read_fork_request,
    read_page_ranges,
};
use belljar_zygote::packet_socket;
use belljar_zygote::payload::Payload;
use bolero::{TypeGenerator, check, produce};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::*;
use crate::inside::{BuilderEvent, BuilderRequest, ExpectedChild, JailPlan};
use crate::launcher::warm::child_connection::failure_of;

fn test_time() -> Duration {
    let full = std::env::var("BELLJAR_TEST_SIZE").is_ok_and(|size| size == "full");
    Duration::from_secs(if full { 300 } else { 1 })
}

/// Descriptors to attach to messages. None of them refers to a process that could be harmed.
struct Props {
    proc: OwnedFd,
    ended: OwnedFd,
    null: OwnedFd,
    pipe: (OwnedFd, OwnedFd),
    /// Stands in for the zygote's process: it has one thread and few descriptors.
    sleeper: Child,
}

impl Props {
    fn new() -> Self {
        let open =
            |path: &str| rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).unwrap();
        let start = |program: &str| {
            let mut command = Command::new(program);
            command.arg("3600").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            command.spawn().unwrap()
        };
        let mut short = start("true");
        let ended = pidfd_open(Pid::from_child(&short), PidfdFlags::empty()).unwrap();
        short.wait().unwrap();
        let pipe = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).unwrap();
        Self { proc: open("/proc"), ended, null: open("/dev/null"), pipe, sleeper: start("sleep") }
    }

    fn fd(&self, choice: u8) -> BorrowedFd<'_> {
        let fds = [&self.ended, &self.null, &self.pipe.0, &self.proc];
        fds[usize::from(choice) % fds.len()].as_fd()
    }

    fn fds(&self, choices: &[u8]) -> Vec<BorrowedFd<'_>> {
        choices.iter().take(MAX_FDS).map(|choice| self.fd(*choice)).collect()
    }

    fn own(&self, choices: &[u8]) -> Vec<OwnedFd> {
        self.fds(choices).into_iter().map(|fd| fd.try_clone_to_owned().unwrap()).collect()
    }

    /// Returns a zygote that has just been started and is connected to `line`.
    fn zygote(&self, socket: OwnedFd) -> Zygote {
        let copy = |fd: &OwnedFd| fd.try_clone().unwrap();
        let (builders, _gone) = sys::packet_socketpair().unwrap();
        let builder = JailBuilder::stand_in(builders, copy(&self.ended), copy(&self.null));
        Zygote {
            number: 1,
            // The pipe is never readable, so the process counts as alive.
            pidfd: copy(&self.pipe.0),
            pid: self.sleeper.id() as i32,
            socket,
            output: copy(&self.pipe.0),
            report: copy(&self.null),
            builder: Rc::new(builder),
            ready: false,
            started: Instant::now(),
            outstanding_forks: VecDeque::new(),
            fds_before_imports: 0,
            last_answer: Instant::now(),
            fork_count: 0,
            namespace_sets: Vec::new(),
            page_stats: PageStats::default(),
            children_preimport: false,
        }
    }
}

impl Drop for Props {
    fn drop(&mut self) {
        self.sleeper.kill().unwrap();
        self.sleeper.wait().unwrap();
    }
}

/// Corruption of a packet: changed bytes, and possibly truncation.
#[derive(Debug, Clone, TypeGenerator)]
struct Damage {
    changes: Vec<(u16, u8)>,
    cut: Option<u16>,
}

impl Damage {
    fn apply(&self, mut packet: Vec<u8>) -> Vec<u8> {
        let len = packet.len();
        self.changes.iter().filter(|_| len > 0).for_each(|(at, byte)| packet[usize::from(*at) % len] = *byte);
        packet.truncate(self.cut.map_or(len, usize::from));
        packet
    }
}

/// A step of the exchange between a zygote and the launcher.
#[derive(Debug, Clone, TypeGenerator)]
enum ExchangeStep {
    /// The launcher requests a fork.
    RequestFork(u64),
    /// A well-formed or nearly well-formed message of a zygote.
    Word {
        kind: u8,
        step: u32,
        errno: i32,
        text: Vec<u8>,
        damage: Damage,
    },
    Ready,
    ForkResult {
        step: u32,
        errno: i32,
        fds: Vec<u8>,
        damage: Damage,
    },
    /// Arbitrary bytes.
    Bytes {
        bytes: Vec<u8>,
        fds: Vec<u8>,
    },
}

impl ExchangeStep {
    fn packet(&self) -> Option<(Vec<u8>, &[u8])> {
        Some(match self {
            ExchangeStep::RequestFork(_) => return None,
            ExchangeStep::Word { kind, step, errno, text, damage } => {
                let message = StatusMessage { kind: u32::from(*kind % 7), step: *step, errno: *errno };
                (damage.apply([bytes_of(&message), text].concat()), &[])
            }
            ExchangeStep::Ready => {
                (bytes_of(&StatusMessage { kind: kind::ZYGOTE_READY, step: 0, errno: 0 }).to_vec(), &[])
            }
            ExchangeStep::ForkResult { step, errno, fds, damage } => {
                let delivered = ForkReply { step: *step % 32, errno: *errno };
                (damage.apply(bytes_of(&delivered).to_vec()), fds)
            }
            ExchangeStep::Bytes { bytes, fds } => (bytes.clone(), fds),
        })
    }
}

/// Checks the launcher's interpretation of a packet. Returns whether the launcher keeps the zygote.
fn check_event(event: ZygoteEvent, first_due: Option<u64>) -> bool {
    // A packet has at most 2 KiB, of which every byte may become a replacement character.
    let is_short = |text: &str| text.len() <= 3 * (2 << 10) + MAX_OUTPUT_BYTES;
    match event {
        ZygoteEvent::Nothing | ZygoteEvent::Ready => true,
        ZygoteEvent::CannotImport { module, reason, .. } => {
            assert!(is_short(&module) && is_short(&reason));
            true
        }
        ZygoteEvent::Forked { number, main } => {
            assert_eq!(Some(number), first_due, "the oldest fork request");
            assert!(main.pid > 0);
            true
        }
        ZygoteEvent::ForkFailed(failed) => {
            assert!(first_due.is_some() && is_short(&failed.to_string()));
            true
        }
        ZygoteEvent::Failed(why) => {
            assert!(is_short(&why));
            false
        }
    }
}

#[test]
fn fuzz_zygote_messages() {
    let props = Props::new();
    check!().with_test_time(test_time()).with_generator(produce::<Vec<ExchangeStep>>()).for_each(|moves| {
        let (socket, peer) = sys::packet_socketpair().unwrap();
        let mut zygote = props.zygote(socket);
        for one in moves {
            let Some((packet, fds)) = one.packet() else {
                if let ExchangeStep::RequestFork(number) = one {
                    zygote.outstanding_forks.push_back(*number);
                }
                continue;
            };
            let (first_due, due) =
                (zygote.outstanding_forks.front().copied(), zygote.outstanding_forks.len());
            let was_ready = zygote.ready;
            wire::send_bytes(peer.as_fd(), &packet, &props.fds(fds)).unwrap();
            let goes_on = check_event(zygote.receive(&props.proc), first_due);
            assert!(zygote.ready || !was_ready, "a ready zygote stays ready");
            assert!(
                due - zygote.outstanding_forks.len() <= usize::from(was_ready),
                "a packet answers one fork request"
            );
            // Receive the launcher's answers, as a zygote would.
            while wire::try_receive_bytes(peer.as_fd(), &mut [0; 8]).is_ok_and(|(len, _)| len > 0) {}
            if !goes_on {
                break;
            }
        }
    });
}

#[test]
fn fuzz_child_messages() {
    let inputs = produce::<(u8, u32, i32, Vec<u8>, Damage)>();
    check!().with_test_time(test_time()).with_generator(inputs).for_each(
        |(kind, step, errno, text, damage)| {
            let message = StatusMessage { kind: u32::from(*kind % 7), step: *step, errno: *errno };
            let packet = damage.apply([bytes_of(&message), text].concat());
            match from_bytes::<StatusMessage>(&packet) {
                Some((message, detail)) => {
                    let failed = failure_of(message, detail);
                    assert!(failed.to_string().len() <= 3 * detail.len() + 256);
                    let (_what, _cause) = (failed.subject(), failed.cause());
                }
                None => assert!(packet.len() < size_of::<StatusMessage>()),
            }
        },
    );
}

/// Well-formed messages of a builder, for the fuzzer to corrupt.
#[derive(Debug, Clone, TypeGenerator)]
enum BuilderMessage {
    Built { number: u64, has_rules: bool },
    NotBuilt { number: u64, step: u32, errno: i32 },
    Inspected { number: u64, mismatch: Option<String> },
    Bytes(Vec<u8>),
}

impl BuilderMessage {
    fn packet(&self) -> Vec<u8> {
        let event = match self.clone() {
            BuilderMessage::Built { number, has_rules } => BuilderEvent::Built { number, has_rules },
            BuilderMessage::NotBuilt { number, step, errno } => {
                let message = StatusMessage { kind: kind::FAILED, step, errno };
                BuilderEvent::NotBuilt { number, failure: failure_of(message, b"") }
            }
            BuilderMessage::Inspected { number, mismatch } => BuilderEvent::Inspected { number, mismatch },
            BuilderMessage::Bytes(bytes) => return bytes,
        };
        postcard::to_allocvec(&event).unwrap()
    }
}

#[test]
fn fuzz_builder_notices() {
    let props = Props::new();
    let inputs = produce::<Vec<(BuilderMessage, Damage, Vec<u8>)>>();
    check!().with_test_time(test_time()).with_generator(inputs).for_each(|events| {
        let (socket, peer) = sys::packet_socketpair().unwrap();
        let copy = |fd: &OwnedFd| fd.try_clone().unwrap();
        let builder = JailBuilder::stand_in(socket, copy(&props.ended), copy(&props.null));
        for (event, damage, fds) in events {
            let whole = event.packet();
            let packet = damage.apply(whole.clone());
            wire::send_bytes(peer.as_fd(), &packet, &props.fds(fds)).unwrap();
            match builder.receive() {
                Ok(answer) => assert!(answer.is_some_and(|(_, fds)| fds.len() <= MAX_FDS)),
                Err(_) => assert!(
                    packet != whole || matches!(event, BuilderMessage::Bytes(_)) || whole.len() > 4 << 10,
                    "an intact message is accepted: {event:?}"
                ),
            }
        }
    });
}

/// A well-formed request to a builder.
#[derive(Debug, Clone, TypeGenerator)]
struct BuilderRequestInput {
    number: u64,
    ids: (u32, u32),
    limits: Vec<(u64, u64)>,
    groups: Vec<String>,
    filters: u32,
    options: String,
    builds: bool,
}

impl BuilderRequestInput {
    fn packet(&self) -> Vec<u8> {
        let request = match self.builds {
            true => BuilderRequest::Build(JailPlan {
                number: self.number,
                new_namespaces: None,
                own_init_uid: true,
                disk_options: self.options.clone(),
                without: 0,
                fail: 0,
            }),
            false => BuilderRequest::Inspect(Box::new(ExpectedChild {
                number: self.number,
                uid: self.ids.0,
                gid: self.ids.1,
                has_no_groups: true,
                rlimits: self.limits.clone(),
                cgroup_suffixes: self.groups.clone(),
                has_no_new_privs: true,
                has_no_capabilities: true,
                filters_len: self.filters,
            })),
        };
        postcard::to_allocvec(&request).unwrap()
    }
}

#[test]
fn fuzz_builder_orders() {
    let props = Props::new();
    let inputs = produce::<(BuilderRequestInput, Damage, Vec<u8>)>();
    check!().with_test_time(test_time()).with_generator(inputs).for_each(|(requests, damage, fds)| {
        let packet = damage.apply(requests.packet());
        let Ok(BuilderRequest::Inspect(expected)) = postcard::from_bytes(&packet) else { return };
        let seen = crate::inside::inspect(&props.proc, &expected, &props.own(fds));
        assert!(seen.is_err(), "no process in a jail was named");
    });
}

#[test]
fn fuzz_launcher_messages() {
    let inputs = produce::<(u32, u32, u32, Vec<u8>, Damage, u8)>();
    check!().with_test_time(test_time()).with_generator(inputs).for_each(
        |(uid, has_rules, limits_len, more, damage, fds)| {
            let request = ForkRequest {
                uid: *uid,
                awaited: 0,
                has_rules: *has_rules % 3,
                limits_len: *limits_len % 16,
                limits: [belljar_zygote::privileges::ResourceLimit::default(); MAX_LIMITS],
                layers_left_out: 0,
                failing_step: 0,
            };
            let packet = damage.apply([bytes_of(&request), more].concat());
            let fds = vec![0; usize::from(*fds) % (MAX_FDS + 1)];
            if let Some(request) = read_fork_request(&packet, fds.len()) {
                // The accesses that a child makes.
                assert!(request.limits[..request.limits_len as usize].len() <= MAX_LIMITS);
                let (rules, join_fds) = fds[OPTIONAL_FDS..].split_at(request.has_rules as usize);
                assert!(rules.len() <= 1 && join_fds.len() <= MAX_FDS);
            }
            let ranges = read_page_ranges(&packet).count();
            assert_eq!(ranges, (packet.len() / size_of::<PageRange>()).min(MAX_PAGE_RANGES));
            let _any = from_bytes::<LandlockAccess>(&packet);
        },
    );
}

/// Receives packets with attached descriptors, as a zygote does.
#[test]
fn fuzz_received_packets() {
    let props = Props::new();
    let inputs = produce::<(Vec<u8>, Vec<u8>, u8)>();
    check!().with_test_time(test_time()).with_generator(inputs).for_each(|(bytes, fds, room)| {
        if bytes.is_empty() {
            // An empty packet means end of file.
            return;
        }
        let (ours, peer) = sys::packet_socketpair().unwrap();
        let fds = props.fds(fds);
        wire::send_bytes(ours.as_fd(), bytes, &fds).unwrap();
        let mut buffer = vec![0; usize::from(*room) + 1];
        let received = packet_socket::receive(std::os::fd::AsRawFd::as_raw_fd(&peer), &mut buffer);
        let Ok(received) = received else { panic!("the packet was not received: {bytes:?}") };
        assert_eq!(received.bytes, bytes.len().min(buffer.len()));
        assert_eq!((received.fds_len, &buffer[..received.bytes]), (fds.len(), &bytes[..received.bytes]));
        // SAFETY: the kernel has just created these descriptors for this process, and nothing else owns them.
        let own = |fd: &i32| unsafe { <OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(*fd) };
        received.fds[..received.fds_len].iter().map(own).for_each(drop);
    });
}

#[test]
fn fuzz_payloads() {
    let inputs = produce::<(Vec<(u32, u32, u64, Vec<u8>)>, Vec<u8>, Damage)>();
    check!().with_test_time(test_time()).with_generator(inputs).for_each(|(files, rest, damage)| {
        let mut bytes = [(files.len() as u32).to_le_bytes(), 3_u32.to_le_bytes()].concat();
        for (target, mode, len, path) in files {
            bytes.extend([target.to_le_bytes(), mode.to_le_bytes()].concat());
            bytes.extend((len % 64).to_le_bytes());
            bytes.extend((path.len() as u32).to_le_bytes());
            bytes.extend(path);
        }
        bytes.extend(rest);
        let bytes = damage.apply(bytes);
        if let Some(payload) = Payload::parse(&bytes) {
            let entries: Vec<_> = payload.entries().collect();
            let total: usize = entries.iter().map(|entry| entry.path.len() + entry.content.len()).sum();
            assert!(total + payload.text.len() <= bytes.len());
        }
    });
}
