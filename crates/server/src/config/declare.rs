//! The form in which settings are declared, and the declaration's data.

/// A setting as it is declared: the source of help, manual pages and the reference.
#[derive(Debug, Clone, Copy)]
pub struct Setting {
    pub(super) field: &'static str,
    pub(super) help: &'static str,
    /// The word for its value, such as `SIZE`.
    pub value: &'static str,
    /// The unit of its value; may be empty.
    pub unit: &'static str,
    /// The forms that its value may have; may be empty.
    pub forms: &'static str,
    /// The text for its default; empty where there is none.
    pub default: &'static str,
    /// A value for users to start from; may be empty.
    pub example: &'static str,
    /// The section of the guide that explains it, as a link from the reference; may be empty.
    pub guide: &'static str,
    /// The values that a number may have.
    pub range: Option<(u64, u64)>,
    /// The name of its option, where that is not its name in a file.
    pub option: &'static str,
    /// There is an option for it, besides a line in a file.
    pub is_option: bool,
    /// The value of its option without a value, where that is allowed.
    pub bare: Option<&'static str>,
    /// `floe replay` has it too.
    pub replayed: bool,
    /// The kind of its value.
    pub kind: Kind,
    /// It takes several values.
    pub is_list: bool,
}

/// The form in which a type is written.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Form {
    /// The word for a value in help.
    pub(crate) value: &'static str,
    pub(crate) unit: &'static str,
    /// The forms that there are.
    pub(crate) forms: &'static str,
    pub(crate) kind: Kind,
    pub(crate) is_list: bool,
}

/// The kind of a setting's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A text.
    Text,
    /// A whole number.
    Number,
    /// True or false; as an option, given or not.
    Flag,
}

impl Setting {
    pub(super) const fn new(field: &'static str, help: &'static str, form: Form) -> Self {
        Self {
            field,
            help,
            value: form.value,
            unit: form.unit,
            forms: form.forms,
            default: "",
            example: "",
            guide: "",
            range: None,
            option: "",
            is_option: true,
            bare: None,
            replayed: false,
            kind: form.kind,
            is_list: form.is_list,
        }
    }

    /// Returns its name in a file.
    pub fn name(&self) -> String {
        self.field.replace('_', "-")
    }

    /// Returns the name of its option.
    pub fn option(&self) -> String {
        if self.option.is_empty() { self.name() } else { self.option.to_owned() }
    }

    /// Returns its meaning, in a sentence without a full stop.
    pub fn meaning(&self) -> &'static str {
        self.help.trim()
    }

    /// Returns the help on its option: meaning, forms, example and default.
    pub fn help(&self) -> String {
        let Self { forms, example, default, .. } = self;
        let mut help = self.meaning().to_owned();
        for (before, text, after) in
            [(" (", forms, ")"), (" [example: ", example, "]"), (" [default: ", default, "]")]
        {
            if !text.is_empty() && self.kind != Kind::Flag {
                help = help + before + text + after;
            }
        }
        help.replace('`', "")
    }
}

/// Declares tables of settings. A setting is its documentation, which is its help as well, its name
/// as a field, its type, the value it begins with, if that is not nothing, and the rest of
/// [`Setting`].
macro_rules! settings {
    ($(
        $(#[doc = $about:literal])+
        $table:ident {
            $(
                $(#[doc = $help:literal])+
                $field:ident: $type:ty $(= $initial:literal)? {
                    $($attribute:ident: $value:expr),* $(,)?
                }
            )*
        }
    )*) => { $(
        $(#[doc = $about])+
        #[derive(Debug, Clone)]
        pub struct $table {
            $( $(#[doc = $help])+ pub $field: $type, )*
        }

        impl Default for $table {
            fn default() -> Self {
                Self { $( $field: settings!(@initial $($initial)?), )* }
            }
        }

        impl Table for $table {
            const SETTINGS: &'static [Setting] = &[$(
                Setting {
                    $($attribute: $value,)*
                    ..Setting::new(
                        stringify!($field),
                        concat!($($help),+),
                        <$type as Value>::FORM,
                    )
                },
            )*];

            fn take<'de, A: MapAccess<'de>>(
                &mut self,
                name: &str,
                map: &mut A,
            ) -> Result<bool, A::Error> {
                match name.replace('-', "_").as_str() {
                    $( stringify!($field) => self.$field = map.next_value_seed(Read::new())?, )*
                    _ => return Ok(false),
                }
                Ok(true)
            }

            fn give<M: SerializeMap>(&self, map: &mut M) -> Result<(), M::Error> {
                let mut settings = Self::SETTINGS.iter();
                $(
                    let setting = settings.next().expect("each field is a setting");
                    if self.$field.is_given() {
                        map.serialize_entry(&setting.name(), &Written(&self.$field))?;
                    }
                )*
                Ok(())
            }

            fn given(&self) -> Vec<String> {
                let given = [$( self.$field.is_given() ),*];
                let settings = Self::SETTINGS.iter().zip(given);
                settings.filter(|(_, given)| *given).map(|(setting, _)| setting.name()).collect()
            }

            fn out_of_range(&self) -> Option<(String, String)> {
                let numbers = [$( self.$field.number() ),*];
                Self::SETTINGS.iter().zip(numbers).find_map(|(setting, number)| {
                    let (name, (low, high)) = (setting.name(), setting.range?);
                    let number = number.filter(|number| !(low..=high).contains(number))?;
                    let problem = format!("{name} = {number} is not between {low} and {high}");
                    Some((name, problem))
                })
            }
        }
    )* };
    (@initial) => { Default::default() };
    (@initial $initial:literal) => { $initial };
}
pub(super) use settings;
