package main

import (
	"github.com/spf13/cobra"

	"github.com/spillway-mq/spillway/internal/settings"
)

func (a *app) configCommand() *cobra.Command {
	var output string
	c := &cobra.Command{
		Use: "config", Short: "List every setting: variable, value, default and meaning", Args: cobra.NoArgs,
		Long: "List every setting: the environment variable, its value now with passwords masked, its default and its meaning.\n" +
			"Values that are wrong are named at the end; the exit code is then 2.",
		RunE: func(*cobra.Command, []string) error {
			entries := settings.Describe()
			err := a.print(output, entries, func(p *printer) {
				var rows [][]string
				for _, e := range entries {
					value := e.Value
					if !e.Set {
						value = "(default)"
					}
					if !e.Set && e.Default == "" {
						value = "(not set)"
					}
					rows = append(rows, []string{e.Name, value, e.Default, e.Meaning})
				}
				p.rows([]string{"VARIABLE", "VALUE", "DEFAULT", "MEANING"}, rows)
			})
			if err != nil {
				return err
			}
			_, err = settings.Load()
			return err
		},
	}
	outputFlag(c, &output)
	return c
}
