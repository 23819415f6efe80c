//! `belljar config show`: prints every setting with its value and origin.

use clap::{Args, Subcommand};

use crate::error::CliError;
use crate::say;
use crate::settings::ShownSetting;
use crate::table::table_with;

/// Arguments of `belljar config`.
#[derive(Debug, Args)]
pub(crate) struct ConfigArgs {
    /// Print one JSON object
    #[arg(long, global = true)]
    pub(crate) json: bool,
    #[command(subcommand)]
    command: ConfigCommand,
}

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    /// Shows all settings with their values and where they come from
    Show,
}

/// Prints the settings.
pub(crate) fn run(args: &ConfigArgs, settings: Vec<ShownSetting>) -> Result<u8, CliError> {
    let ConfigCommand::Show = args.command;
    if args.json {
        let object = serde_json::to_string(&settings).map_err(|error| CliError::host(error.to_string()))?;
        say::answer(&object);
        return Ok(0);
    }
    let mut table = table_with(["SETTING", "VALUE", "FROM"]);
    for setting in settings {
        table.add_row([setting.name, say::printable(&setting.value), setting.origin]);
    }
    say::answer(&table.to_string());
    Ok(0)
}
