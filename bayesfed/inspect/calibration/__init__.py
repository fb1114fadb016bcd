"""Pictures of uncertainty: `reliability`, and what uncertainty can tell (`telling`)."""
