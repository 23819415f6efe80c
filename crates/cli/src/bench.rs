//! `belljar bench`. The benchmark is a crate of its own, which builds for Linux can leave out.

#[cfg(not(all(feature = "bench", target_os = "linux")))]
pub(crate) use absent::{BenchArgs, run};
#[cfg(all(feature = "bench", target_os = "linux"))]
pub(crate) use present::{BenchArgs, run};

#[cfg(all(feature = "bench", target_os = "linux"))]
mod present {
    use std::sync::Arc;

    pub(crate) use belljar_bench::BenchArgs;
    use belljar_bench::BenchError;

    use crate::config::Config;
    use crate::env::Environment;
    use crate::error::CliError;
    use crate::{say, wire};

    const EXIT_CANCELED: u8 = 130;

    /// Measures and shows the table.
    pub(crate) fn run(args: &BenchArgs, environment: &Environment, config: &Config) -> Result<u8, CliError> {
        let defaults = Config::without_files();
        let packages = |provider, folder| {
            Arc::new(wire::libraries(provider, folder, &defaults, environment, Arc::new(|_| ()))) as _
        };
        if belljar_bench::run(args, config.providers.docker(), &packages)? {
            return Ok(0);
        }
        say::note("the benchmark was canceled");
        Ok(EXIT_CANCELED)
    }

    impl From<BenchError> for CliError {
        fn from(error: BenchError) -> Self {
            Self { code: error.code(), message: error.to_string() }
        }
    }
}

#[cfg(not(all(feature = "bench", target_os = "linux")))]
mod absent {
    use std::ffi::OsString;

    use belljar_engine::ErrorCode;
    use clap::Args;

    use crate::config::Config;
    use crate::env::Environment;
    use crate::error::CliError;

    /// Any arguments.
    #[derive(Debug, Args)]
    pub(crate) struct BenchArgs {
        #[arg(hide = true, trailing_var_arg = true, allow_hyphen_values = true)]
        _arguments: Vec<OsString>,
        #[arg(skip)]
        pub(crate) json: bool,
    }

    /// Says how to get a belljar with the benchmark.
    pub(crate) fn run(_: &BenchArgs, _: &Environment, _: &Config) -> Result<u8, CliError> {
        let message = "this belljar was built without its benchmark; build it on Linux, from its source, with: \
                       cargo build --release --features bench";
        Err(CliError { code: ErrorCode::Unsupported, message: message.to_owned() })
    }
}
