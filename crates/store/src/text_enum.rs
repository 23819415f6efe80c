//! Enums with a fixed text form that the database, JSON and query strings share.

/// Defines an enum and its conversions to and from text and database columns.
macro_rules! text_enum {
    ($(#[$doc:meta])* $name:ident, $field:literal { $($(#[$word_doc:meta])* $word:ident = $text:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, schemars::JsonSchema)]
        pub enum $name {
            $($(#[$word_doc])* #[schemars(rename = $text)] $word,)+
        }

        impl $name {
            /// All values.
            pub const ALL: &'static [Self] = &[$(Self::$word),+];

            /// Returns the text form.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$word => $text,)+ }
            }
        }

        impl std::str::FromStr for $name {
            type Err = crate::error::Error;

            fn from_str(text: &str) -> Result<Self, crate::error::Error> {
                Self::ALL.iter().copied().find(|word| word.as_str() == text).ok_or_else(|| {
                    crate::error::Error::invalid($field, concat!("must be one of", $(" ", $text),+))
                })
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }

        impl rusqlite::ToSql for $name {
            fn to_sql(&self) -> rusqlite::Result<rusqlite::types::ToSqlOutput<'_>> {
                Ok(self.as_str().into())
            }
        }

        impl rusqlite::types::FromSql for $name {
            fn column_result(value: rusqlite::types::ValueRef<'_>) -> rusqlite::types::FromSqlResult<Self> {
                value.as_str()?.parse().map_err(rusqlite::types::FromSqlError::other)
            }
        }
    };
}
pub(crate) use text_enum;
