// Functions without bodies need a file of assembly in their package.
